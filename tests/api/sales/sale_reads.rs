//! Reads that reach no database: unknown ids, hot keys, and a filter that follows new and removed sales.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::Value;

use seckill_buying::sale_work::retention::{Retention, RetentionTimes};
use seckill_domain::sale::NewSale;
use seckill_harness::{Sale, System, eventually, redis_at, terms, until, wait_until};
use seckill_postgres::notices::Topic;

use crate::buying::purchase_groups::{buy_together, buyers};
use crate::flow::callers_apart::keys;
use crate::network::broken_network::wired_with;

async fn queries(system: &System, like: &str) -> i64 {
    sqlx::query_scalar(
        "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
         WHERE d.datname = current_database() AND query LIKE $1",
    )
    .bind(like)
    .fetch_one(&system.sql)
    .await
    .unwrap()
}

async fn count_queries(system: &System) {
    system.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await;
}

/// The status and the body of a read. On a busy machine, a read that waits too long for a document gets 503, and is repeated.
async fn read_at(url: &str) -> (u16, Value) {
    eventually(|| async {
        let answer = reqwest::get(url).await.map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        let text = answer.text().await.map_err(|error| error.to_string())?;
        if status == 503 { Err(text) } else { Ok((status, serde_json::from_str(&text).unwrap_or_default())) }
    })
    .await
}

async fn cached_documents(system: &System) -> usize {
    let mut connection = redis_at(&system.config.redis.url).await.unwrap();
    let pattern = format!("{}doc:*", system.config.redis.prefix);
    let (mut cursor, mut found) = (0_u64, 0);
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000);
        let (next, keys): (u64, Vec<String>) = scan.query_async(&mut connection).await.unwrap();
        (cursor, found) = (next, found + keys.len());
        if cursor == 0 {
            return found;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_unknown_ids_reaches_neither_postgres_nor_redis() {
    let system = System::start().await;
    count_queries(&system).await;
    system.create_sale(terms(5)).await;
    for chunk in 0..30_i64 {
        let unknown = (0..100).map(|n| 1_000_000_007 + (chunk * 100 + n) * 7_919);
        let answers =
            join_all(unknown.flat_map(|id| ["sales", "products"].map(|what| (what, id))).map(|(what, id)| {
                let system = &system;
                async move { system.get(&format!("/api/v1/{what}/{id}"), None).await.0 }
            }))
            .await;
        assert!(answers.iter().all(|status| *status == 404));
    }
    // About one unknown id in a thousand passes the filter. It gets a short-lived null entry.
    let passed = queries(&system, "%FROM products WHERE id = $1%").await
        + queries(&system, "%FROM sales s JOIN products p%WHERE s.id = ANY($1)%").await;
    assert!(passed < 60, "{passed} of 6000 reached PostgreSQL");
    assert!(cached_documents(&system).await < 60);
    system.finish().await;
}

/// Loads, changes and removals by the other instance.
#[tokio::test(flavor = "multi_thread")]
async fn two_instances_load_once_and_follow_every_change() {
    let mut system = System::start().await;
    system.serve(false).await;
    a_cold_hot_key_is_loaded_once_by_the_whole_cluster(&system).await;
    changes_that_are_no_longer_known_leave_no_stale_copy(&system).await;
    new_sales_are_known_at_once_and_removed_ones_gone_within_a_second(&system).await;
    changes_without_a_notice_are_found(&system).await;
    system.finish().await;
}

async fn a_cold_hot_key_is_loaded_once_by_the_whole_cluster(system: &System) {
    count_queries(system).await;
    let id = system.number("INSERT INTO products (name) VALUES ('Hot') RETURNING id").await;
    let urls = system.instances.iter().map(|i| format!("http://{}/api/v1/products/{id}", i.address));
    let urls: Vec<String> = urls.collect();
    // Both filters know the product, and neither instance has loaded it yet.
    let version = "SELECT version FROM catalog_version";
    let version = system.number(version).await;
    assert!(system.stores.ledger.sales.wait_for_instances(version, seckill_harness::PATIENCE).await.unwrap());
    let client = reqwest::Client::new();
    let began = Instant::now();
    // On a busy machine, an instance that has waited too long for the other's load gets 503, and repeats.
    let reads = (0..256).map(|n| {
        let (client, url) = (&client, &urls[n % 2]);
        eventually(move || async move {
            let status = client.get(url).send().await.map_err(|error| error.to_string())?.status();
            (status == 200).then_some(()).ok_or_else(|| status.to_string())
        })
    });
    join_all(reads).await;
    // One load, unless it took longer than the loader's lease of 2 s, after which another may load.
    let leases_ended = i64::try_from(began.elapsed().as_secs() / 2).unwrap();
    let loads = queries(system, "%FROM products WHERE id = $1%").await;
    assert!((1..=1 + leases_ended).contains(&loads), "{loads} loads in {:?}", began.elapsed());
    // Both instances see a change, although both have the old document in memory.
    sqlx::query("UPDATE products SET description = 'new' WHERE id = $1").bind(id).execute(&system.sql).await.unwrap();
    for url in &urls {
        wait_until(
            || async { client.get(url).send().await.unwrap().text().await.unwrap() },
            |text| text.contains("new"),
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_loader_delays_readers_no_longer_than_its_lease() {
    let system = System::shared().await;
    let id = system.number("INSERT INTO products (name) VALUES ('Loaded by the dead') RETURNING id").await;
    let mut connection = redis_at(&system.config.redis.url).await.unwrap();
    let key = format!("{}lock:{{load:product:{id}}}", system.config.redis.prefix);
    let _: () = redis::cmd("SET").arg(key).arg("dead").arg("PX").arg(2_000).query_async(&mut connection).await.unwrap();
    let path = format!("/api/v1/products/{id}");
    // The lease is 2 s; a reader that waited longer would wait for ever.
    until(200, || async { system.get(&path, None).await.0 }).await;
}

/// An instance is so far behind that PostgreSQL no longer has the single changes. It serves no older copy.
async fn changes_that_are_no_longer_known_leave_no_stale_copy(system: &System) {
    let id = system.number("INSERT INTO products (name) VALUES ('Old') RETURNING id").await;
    let names = async || {
        let mut all = Vec::new();
        for instance in &system.instances {
            let product = read_at(&format!("http://{}/api/v1/products/{id}", instance.address)).await.1;
            all.push(product["name"].as_str().unwrap_or_default().to_owned());
        }
        all
    };
    let followed = async || {
        until(0, || {
            system
                .number("SELECT count(*) FROM instances WHERE catalog_version < (SELECT version FROM catalog_version)")
        })
        .await;
    };
    followed().await;
    assert_eq!(names().await, ["Old", "Old"]);
    system
        .execute(
            "BEGIN;
         UPDATE products SET name = 'New' WHERE name = 'Old';
         INSERT INTO products (name) VALUES ('Other');
         DELETE FROM catalog_changes WHERE version < (SELECT version FROM catalog_version);
         COMMIT",
        )
        .await;
    followed().await;
    assert_eq!(names().await, ["New", "New"]);
}

/// The answer of each instance to a read.
async fn seen(system: &System, path: &str) -> Vec<u16> {
    let mut all = Vec::new();
    for instance in &system.instances {
        all.push(read_at(&format!("http://{}{path}", instance.address)).await.0);
    }
    all
}

async fn new_sales_are_known_at_once_and_removed_ones_gone_within_a_second(system: &System) {
    let sale = system.create_sale(terms(5)).await;
    let path = format!("/api/v1/sales/{}", sale.id);
    assert_eq!(seen(system, &path).await, [200, 200]);
    assert!(system.stores.remove_sale(sale.id, "test").await.unwrap());
    // The removal waits at most 3 s for the instances, which is too short for a busy machine.
    until([404, 404], || seen(system, &path)).await;
    assert_eq!(system.buy(&sale, "ann").send().await.code(), "404 unknown-sale");
    // A sale with purchases is not removed.
    let bought = system.create_sale(terms(5)).await;
    assert_eq!(system.buy(&bought, "ann").send().await.code(), "202");
    assert!(!system.stores.remove_sale(bought.id, "test").await.unwrap());
    system.settled(&bought).await;
}

/// The poll finds a change that sends no notice.
async fn changes_without_a_notice_are_found(system: &System) {
    system
        .execute(
            "CREATE OR REPLACE FUNCTION record_catalog_change() RETURNS trigger LANGUAGE plpgsql AS $$
         DECLARE next bigint; BEGIN
           UPDATE catalog_version SET version = version + 1 RETURNING version INTO next;
           INSERT INTO catalog_changes (version, kind, id, removed)
           VALUES (next, TG_ARGV[0], coalesce(NEW.id, OLD.id), TG_OP = 'DELETE'); RETURN NULL; END $$",
        )
        .await;
    let id = system.number("INSERT INTO products (name) VALUES ('Quiet') RETURNING id").await;
    until([200, 200], || async { seen(system, &format!("/api/v1/products/{id}")).await }).await;
}

async fn leaves_redis(system: &System, sale: &Sale) {
    wait_until(
        || async { system.stores.gate.sale_view(system.shards(sale).await).await.unwrap() },
        |view| view.is_none(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_sale_can_still_be_read_and_its_tickets_are_still_known() {
    let mut system = System::prepare(&[
        ("SECKILL_RECONCILE__RETIRE_AFTER_MS", "1500"),
        ("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "200"),
    ])
    .await;
    // A refill that never ended leaves its sale without a run id. When the sale has ended, it is removed from Redis like others.
    let unfilled = system.create_sale(terms(5)).await;
    let ended = "WITH unfilled AS (UPDATE sale_epochs SET run_id = NULL WHERE sale_id = $1)
                 UPDATE sales SET starts_at = now() - interval '1 hour', ends_at = now() - interval '10 s' WHERE id = $1";
    system.change(ended, &unfilled).await;
    assert!(system.stores.gate.sale_view(system.shards(&unfilled).await).await.unwrap().is_some());
    system.serve(true).await;
    leaves_redis(&system, &unfilled).await;

    let sale = system.create_sale(terms(5)).await;
    let order = system.buy(&sale, "ann").idempotent("k").send().await.order_id();
    system.settled(&sale).await;
    // It ended ten seconds ago.
    let ended =
        "UPDATE sales SET starts_at = now() - interval '1 hour', ends_at = now() - interval '10 s' WHERE id = $1";
    system.change(ended, &sale).await;
    leaves_redis(&system, &sale).await;
    let path = format!("/api/v1/sales/{}", sale.id);
    wait_until(|| system.get(&path, None), |(status, shown)| *status == 200 && shown["status"] == "ended").await;
    let again = system.buy(&sale, "ann").idempotent("k").send().await;
    assert_eq!((again.code(), again.order_id()), ("202".into(), order.clone()));
    let other = system.buy(&sale, "ann").send().await;
    assert_eq!((other.code(), other.order_id()), ("409 already-purchased".into(), order));
    assert_eq!(system.buy(&sale, "bob").send().await.code(), "403 ended");
    assert!(system.audit(&sale).await.unwrap().unwrap().held);
    system.finish().await;
}

/// A reader hangs up while a document is loaded. Other readers still get the document from the same load.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_hangs_up_keeps_no_document_from_others() {
    // The workers hold connections for long too, because each step is slow.
    let (system, wire) = wired_with("DATABASE_URL", &[("SECKILL_DATABASE__ACQUIRE_TIMEOUT_MS", "20000")]).await;
    // On a busy machine the load may end before the test sees it. Then the test tries another product.
    let mut tried = 0;
    let path = loop {
        tried += 1;
        assert!(tried <= 20, "nobody loads");
        wire.delay(Duration::ZERO);
        // The instance knows the sale, and so its product.
        let sale = system.create_sale(NewSale { product: format!("Phone {tried}"), ..terms(5) }).await;
        let product = "SELECT product_id FROM sales WHERE id = $1";
        let product: i64 = sqlx::query_scalar(product).bind(sale.id.get()).fetch_one(&system.sql).await.unwrap();
        let path = format!("/api/v1/products/{product}");
        wire.delay(Duration::from_millis(200));
        let reader = tokio::spawn(reqwest::get(system.url(&path)));
        let mut is_loading = false;
        while !is_loading && !reader.is_finished() {
            is_loading = !keys(&system, "lock:{load:").await.is_empty();
        }
        reader.abort();
        if is_loading {
            break path;
        }
    };
    until(200, || async { system.get(&path, None).await.0 }).await;
    wire.delay(Duration::ZERO);
    system.finish().await;
}

/// The rows of a sale are deleted long after its end, and rows that another sale needs are kept.
#[tokio::test(flavor = "multi_thread")]
async fn the_messages_of_a_sale_long_over_are_cleared_and_its_orders_are_kept() {
    let system = System::shared().await;
    let (over, present) = (system.create_sale(terms(5)).await, system.create_sale(terms(5)).await);
    for sale in [&over, &present] {
        for user in ["ann", "ben"] {
            assert_eq!(system.buy(sale, user).send().await.code(), "202");
        }
        buy_together(&system, sale, &buyers(2)).await;
        system.stores.ledger.notify(Topic::Outbox).await.unwrap();
        system.settled(sale).await;
        system.let_deadlines_pass(sale).await;
        system.left(sale, 5).await;
        system.settled(sale).await;
    }
    let past =
        "UPDATE sales SET starts_at = now() - interval '31 days', ends_at = now() - interval '30 days' WHERE id = $1";
    system.change(past, &over).await;
    let days = RetentionTimes { messages_days: 7, steps_days: 0, records_days: 400 };
    let retention = tokio::sync::Mutex::new(Retention::new(system.stores.clone(), days));
    let rows = "SELECT count(*) FROM outbox WHERE sale_id = $1";
    let steps = "SELECT count(*) FROM order_steps s JOIN orders o ON o.id = s.order_id WHERE o.sale_id = $1";
    let lapsed = "SELECT count(*) FROM lapsed_holds WHERE sale_id = $1";
    let groups = "SELECT count(*) FROM purchase_groups WHERE sale_id = $1";
    let counters = "SELECT count(*) FROM sale_buyers WHERE sale_id = $1";
    let kept = (system.count(rows, &present).await, system.count(steps, &present).await);
    // Rows without a sale: an old one of each, and a new one.
    let about_none = "INSERT INTO audit_log (at, actor, action, subject)
                        SELECT now() - d * interval '1 day', 'a', 'old', 's' FROM unnest(ARRAY[1, 500]) d;
                      INSERT INTO alarms (kind, subject, cleared_at)
                        SELECT 'old', d::text, now() - d * interval '1 day' FROM unnest(ARRAY[1, 500]) d;
                      INSERT INTO alarms (kind, subject, raised_at) VALUES ('old', 'open', now() - interval '500 days');
                      INSERT INTO callbacks_set_aside (channel, message_id, problem, body, settled_at)
                        SELECT 'kept', d::text, 'p', '', now() - d * interval '1 day' FROM unnest(ARRAY[1, 500]) d;
                      INSERT INTO outflow_channels (name, rate, jitter_ms, gap_us, target) VALUES ('kept', 10, 10, 200000, 'http://a/');
                      INSERT INTO outflow_items (id, channel, key, payload, status, done_at)
                        SELECT gen_random_uuid(), 'kept', 'k', '{}', 'done', now() - d * interval '1 day' FROM unnest(ARRAY[1, 500]) d";
    system.execute(about_none).await;
    let left_of_them = "SELECT (SELECT count(*) FROM audit_log WHERE action = 'old') + (SELECT count(*) FROM alarms WHERE kind = 'old')
                          + (SELECT count(*) FROM callbacks_set_aside WHERE channel = 'kept')
                          + (SELECT count(*) FROM outflow_items WHERE channel = 'kept') + 0 * $1";
    let untold = "INSERT INTO order_events (order_id, step_id, next_attempt_at)
                  SELECT order_id, s.id, 'infinity' FROM order_steps s JOIN orders o ON o.id = s.order_id
                  WHERE o.sale_id = $1 ORDER BY s.id LIMIT 1 RETURNING order_id";
    let untold: uuid::Uuid = sqlx::query_scalar(untold).bind(over.id.get()).fetch_one(&system.sql).await.unwrap();
    // The shop has not received one step.
    for steps_left in [1, 0] {
        until([0, steps_left, 0, 0, 0, 5], || async {
            retention.lock().await.step().await.unwrap();
            let kinds = [rows, steps, lapsed, groups, counters, left_of_them];
            join_all(kinds.map(|what| system.count(what, &over))).await
        })
        .await;
        let told = "DELETE FROM order_events WHERE order_id = $1";
        sqlx::query(told).bind(untold).execute(&system.sql).await.unwrap();
    }
    assert_eq!((system.count(rows, &present).await, system.count(steps, &present).await), kept);
    assert_eq!((system.count(lapsed, &present).await, system.count(groups, &present).await), (4, 3));
    assert_eq!(system.orders(&over).await, 4);
    for sale in [&over, &present] {
        let verdict = system.audit(sale).await.unwrap().unwrap();
        assert!(verdict.held, "{verdict:?}");
    }
}
