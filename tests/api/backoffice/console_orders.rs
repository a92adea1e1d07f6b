//! The console's orders, money and queues: search and paging, the export, refunds by operators, and the retry of parked rows.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use seckill_domain::outflow::Pace;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::backoffice::admin_api::{Person, UNLIMITED, send};
use crate::backoffice::console_frame::people;
use crate::backoffice::console_sales::removal;
use crate::orders::payments_and_callbacks::{self, Callback};
use seckill_harness::{Sale, System, eventually, terms, until};

/// Writes orders into the table, seven for each moment. The buyers are `u0` to `u4`.
async fn orders(system: &System, sale: &Sale, number: i32, before: &str) {
    let insert = "INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, currency, status, created_at, expires_at, group_id)
                  SELECT gen_random_uuid(), $1, 'u' || n % 5, 1, 100, 'CNY', 'pending_payment',
                         now() - $3::text::interval - n / 7 * interval '1 second', now() + interval '1 hour', gen_random_uuid()
                  FROM generate_series(0, $2 - 1) AS n";
    let insert = sqlx::query(insert).bind(sale.id.get()).bind(number).bind(before);
    insert.execute(&system.sql).await.unwrap();
}

fn ids(page: &Value) -> Vec<Uuid> {
    let orders = page["orders"].as_array().unwrap().iter();
    orders.map(|order| order["order_id"].as_str().unwrap().parse().unwrap()).collect()
}

/// Orders are searched and exported. Without workers, only the test changes orders.
#[tokio::test(flavor = "multi_thread")]
async fn orders_are_paged_found_and_exported() {
    let mut system = System::without_workers(&[]).await;
    let people = people(&system).await;
    assert_pages_miss_and_repeat_nothing_while_orders_arrive(&system, &people).await;
    let sale = system.create_sale(terms(100)).await;
    orders(&system, &sale, 10, "1 hour").await;
    let bought = payments_and_callbacks::bought(&system, &sale, "ann").await.to_string();
    assert_found_by_sale_status_buyer_and_id(&people, &sale, &bought).await;
    orders(&system, &sale, 2_490, "1 hour").await;
    assert_an_export_is_the_table(&system, &people, &bought).await;
    system.stop().await;
}

/// For each search, the pages list every existing order once, newest first, although new orders arrive between them.
async fn assert_pages_miss_and_repeat_nothing_while_orders_arrive(system: &System, [root, ..]: &[Person; 3]) {
    let (sale, other) = (system.create_sale(terms(100)).await, system.create_sale(terms(100)).await);
    orders(system, &sale, 50, "1 hour").await;
    orders(system, &other, 20, "1 hour").await;
    let one = format!("sale={}", sale.id);
    for (search, found, condition) in [
        (String::new(), 70, "true"),
        ("status=pending_payment".into(), 70, "true"),
        (one.clone(), 50, "sale_id = $1"),
        (format!("{one}&status=pending_payment"), 50, "sale_id = $1"),
        ("user=u3".into(), 14, "user_id = 'u3'"),
        (format!("{one}&user=u3&status=pending_payment"), 10, "sale_id = $1 AND user_id = 'u3'"),
    ] {
        let all = format!(
            "SELECT id FROM orders WHERE created_at < now() - interval '30 minutes' AND {condition} AND $1::bigint > 0
             ORDER BY created_at DESC, id DESC"
        );
        let all: Vec<Uuid> =
            sqlx::query_scalar(sqlx::AssertSqlSafe(all)).bind(sale.id.get()).fetch_all(&system.sql).await.unwrap();
        assert_eq!(all.len(), found, "{search}");
        let (mut seen, mut before) = (Vec::new(), String::new());
        loop {
            let page = root.get(&format!("orders?{search}&limit=9{before}")).await;
            assert_eq!(page.status, 200, "{search}: {}", page.body);
            assert!(page.body["orders"].as_array().unwrap().len() <= 9);
            seen.extend(ids(&page.body));
            orders(system, &sale, 2, "0 seconds").await;
            let Some(next) = page.body["next_before"].as_str() else { break };
            before = format!("&before={next}");
        }
        // Orders of earlier rounds, which arrived during a read, are older than all those of this round.
        let seen: Vec<Uuid> = seen.into_iter().filter(|id| all.contains(id)).collect();
        assert_eq!(seen, all, "{search}");
    }
}

/// A purchase is found immediately, before its order is made. An invalid query is refused.
async fn assert_found_by_sale_status_buyer_and_id([root, _, vic]: &[Person; 3], sale: &Sale, bought: &str) {
    let search = async |person: &Person, query: &str| {
        eventually(|| async {
            let page = person.get(&format!("orders?{query}")).await;
            assert_eq!(page.status, 200, "{query}: {}", page.body);
            // Purchases that cannot be read within a second are left out, and the page says so.
            let is_whole = page.body["lacks_accepted"] == false;
            is_whole.then(|| page.body["orders"].as_array().unwrap().clone()).ok_or_else(|| page.body.to_string())
        })
        .await
    };
    let all = search(root, &format!("sale={}", sale.id)).await;
    assert_eq!(all.len(), 11);
    let newest = (&all[0]["order_id"], &all[0]["user"], &all[0]["status"], &all[0]["amount_cents"]);
    assert_eq!(newest, (&json!(bought), &json!("ann"), &json!("accepted"), &json!(100)));
    let known = all[5]["order_id"].as_str().unwrap();
    // Empty fields of a form mean nothing.
    for (query, found) in [
        (format!("sale={}&status=&user=&order=&before=&limit=", sale.id), 11),
        ("sale=999999".into(), 0),
        ("status=accepted".into(), 1),
        ("status=paid".into(), 0),
        ("user=ann".into(), 1),
        ("user=ann&status=pending_payment".into(), 0),
        ("user=nobody".into(), 0),
        (format!("order={known}"), 1),
        (format!("order={bought}&status=accepted&user=ann"), 1),
        (format!("order={known}&user=ann"), 0),
        (format!("order={}", Uuid::nil()), 0),
    ] {
        assert_eq!(search(vic, &query).await.len(), found, "{query}");
    }
    let wrong = "sale=0 sale=x status=sold user=a%07b order=7 before=7 limit=0 limit=1001 limit=x stauts=paid";
    for wrong in wrong.split(' ').chain(["before=00000000-0000-0000-0000-000000000000", "sale=1&sale=2"]) {
        let answer = root.get(&format!("orders?{wrong}")).await;
        assert_eq!(answer.code(), "400 invalid-request", "{wrong}: {}", answer.body);
        assert!(!answer.body["detail"].as_str().unwrap().is_empty(), "{wrong}");
    }
    for (id, code) in [(Uuid::nil().to_string(), "404 not-found"), ("x".into(), "400 invalid-request")] {
        assert_eq!(root.get(&format!("orders/{id}")).await.code(), code);
    }
    let whole = vic.get(&format!("orders/{known}")).await;
    assert_eq!((whole.status, &whole.body["changes"][0]["to"]), (200, &json!("pending_payment")));
    assert_eq!(root.get(&format!("orders/{bought}")).await.body["messages"][0]["kind"], "group_placed");
    assert_eq!(vic.get(&format!("orders/{bought}")).await.body["messages"], json!([]));
}

/// The file has every order of its moment once, and no formula. Only operators may export, and the audit log records it.
async fn assert_an_export_is_the_table(system: &System, [_, max, _]: &[Person; 3], bought: &str) {
    for formula in ["=1+1", "+1", "-2+3", "@SUM(A1)", "\t=1"] {
        let set = "UPDATE orders SET user_id = $1
                   WHERE id = (SELECT id FROM orders WHERE user_id ~ '^u' ORDER BY created_at LIMIT 1)";
        sqlx::query(set).bind(formula).execute(&system.sql).await.unwrap();
    }
    let export = async |query: &str| {
        let answer = max.request("GET", &format!("orders.csv?{query}"), None).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), &answer.headers()["cache-control"]), (200, &"no-store".parse().unwrap()));
        assert_eq!(answer.headers()["content-type"], "text/csv; charset=utf-8");
        answer.text().await.unwrap()
    };
    let text = export("").await;
    assert!(
        text.starts_with(
            "order_id,sale_id,user,quantity,amount_cents,currency,status,reason,created_at,expires_at,number,product,channel,paid_at,\
             refunded_cents,refunded_at\r\n"
        )
    );
    let records: Vec<csv::StringRecord> =
        csv::Reader::from_reader(text.as_bytes()).records().map(Result::unwrap).collect();
    assert_eq!((&records[0][0], &records[0][6]), (bought, "accepted"));
    assert!(records.iter().all(|cells| &cells[5] == "CNY" && cells[0].ends_with(&cells[10]) && cells[11].len() > 2));
    let written: Vec<(Uuid, i64, String, i32, i64, String)> = sqlx::query_as(
        "SELECT id, sale_id, user_id, quantity, amount_cents, status FROM orders ORDER BY created_at DESC, id DESC",
    )
    .fetch_all(&system.sql)
    .await
    .unwrap();
    let exported: Vec<_> = records[1..]
        .iter()
        .map(|cells| {
            let user = cells[2].trim_start_matches('\'').to_owned();
            let number = |n: usize| cells[n].parse::<i64>().unwrap();
            (cells[0].parse().unwrap(), number(1), user, number(3) as i32, number(4), cells[6].to_owned())
        })
        .collect();
    assert_eq!(exported, written);
    assert_eq!(text.matches("\r\n").count(), written.len() + 2, "each line ends with CR and LF");
    let formulas = records.iter().flat_map(|cells| cells.iter().map(str::to_owned).collect::<Vec<_>>());
    let formulas: Vec<_> = formulas.filter(|cell| cell.starts_with(['=', '+', '-', '@', '\t', '\r'])).collect();
    assert!(formulas.is_empty(), "{formulas:?}");
    assert_eq!(text.matches(",'").count() + text.matches(",\"'").count(), 5);

    assert_eq!(export("user=ann").await.lines().count(), 2);
    assert_eq!(export("user=nobody").await.lines().count(), 1, "the columns alone");
    // A file that continues after the last order of the first file.
    let last = records[2_000][0].to_owned();
    assert_eq!(export(&format!("before={last}")).await.lines().count(), records.len() - 2_000);
    for wrong in
        ["status=x", "order=00000000-0000-0000-0000-000000000000", "before=00000000-0000-0000-0000-000000000000"]
    {
        let answer = max.get(&format!("orders.csv?{wrong}")).await;
        assert_eq!(answer.code(), "400 invalid-request", "{wrong}");
    }
    // The headers alone are no export.
    let head = max.request("HEAD", "orders.csv", None).send().await.unwrap();
    assert_eq!(
        (head.status().as_u16(), &head.headers()["content-type"]),
        (200, &"text/csv; charset=utf-8".parse().unwrap())
    );
    let lines: Vec<(String, Value)> =
        sqlx::query_as("SELECT actor, details FROM audit_log WHERE action = 'export orders' ORDER BY id")
            .fetch_all(&system.sql)
            .await
            .unwrap();
    assert!(lines.len() == 4 && lines.iter().all(|(actor, _)| actor == "max"), "{lines:?}");
    assert_eq!(lines[1].1["user"], "ann");
}

/// An instance makes one export at a time. An unread export blocks nothing else, and ends when its client goes.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_is_not_read_holds_up_no_more_than_the_next_export() {
    let mut system = System::without_workers(&[]).await;
    let [root, max, _] = people(&system).await;
    let sale = system.create_sale(terms(100)).await;
    // More than the buffers of a connection hold.
    system.execute("ALTER TABLE orders DISABLE TRIGGER USER").await;
    let insert = "INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, currency, status, expires_at, group_id)
                  SELECT gen_random_uuid(), $1, repeat('x', 2000), 1, 100, 'CNY', 'paid', now(), gen_random_uuid() FROM generate_series(1, 20000)";
    sqlx::query(insert).bind(sale.id.get()).execute(&system.sql).await.unwrap();
    let unread = max.request("GET", "orders.csv", None).send().await.unwrap();
    assert_eq!(unread.status(), 200);
    let second = send(root.request("GET", "orders.csv", None)).await;
    assert_eq!(second.code(), "503 temporarily-unavailable");
    assert_eq!(root.get("orders?limit=1").await.status, 200);
    drop(unread);
    let third = async || root.request("GET", "orders.csv?user=nobody", None).send().await.unwrap().status();
    until(200, third).await;
    system.stop().await;
}

/// A parked message is shown with its error. It is sent again once, however many people press the button, and then takes effect once.
#[tokio::test(flavor = "multi_thread")]
async fn a_parked_message_is_sent_again_once() {
    let mut system = System::without_workers(&[]).await;
    let [root, max, _] = people(&system).await;
    let sale = system.create_sale(terms(5)).await;
    for buyer in ["ann", "bob"] {
        payments_and_callbacks::bought(&system, &sale, buyer).await;
    }
    let park = "UPDATE outbox SET status = 'parked', attempts = 8, last_error = '500 <script>alert(1)</script>'";
    system.execute(park).await;
    let outbox = max.get("outbox?status=parked&kind=group_placed&limit=1").await;
    assert_eq!(outbox.status, 200, "{}", outbox.body);
    assert_eq!((&outbox.body["to_do"][0]["parked"], &outbox.body["to_do"][0]["pending"]), (&json!(2), &json!(0)));
    let row = &outbox.body["parked"][0];
    assert_eq!((&row["user"], &row["attempts"], &row["payload"]["quantity"]), (&json!("bob"), &json!(8), &json!(1)));
    assert!(row["error"].as_str().unwrap().starts_with("500"));
    let older = format!("outbox?before={}", outbox.body["next_before"]);
    assert_eq!(max.get(&older).await.body["parked"][0]["user"], "ann");
    // Shown as a text, never as a part of the page.
    let (_, page) = root.page("/admin/outbox").await;
    assert!(page.contains("500 &#60;script") && !page.contains("<script>alert"), "{page}");

    let retry = format!("outbox/{}/retry", row["id"]);
    let answers = join_all((0..4).map(|n| {
        let person = if n % 2 == 0 { &root } else { &max };
        person.post(&retry, json!({}))
    }));
    let codes: Vec<String> = answers.await.iter().map(|answer| answer.code()).collect();
    assert_eq!(codes.iter().filter(|code| *code == "200").count(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| *code == "404 not-found").count(), 3, "{codes:?}");
    for (body, status) in [(json!({ "kind": "hold_release" }), 200), (json!({ "kind": "x" }), 400), (json!({}), 400)] {
        let answer = max.post("outbox/retry", body).await;
        assert_eq!(answer.status, status);
        assert!(status != 200 || answer.body["retried"] == 0, "{}", answer.body);
    }
    let all = max.post("outbox/retry", json!({ "kind": "group_placed" })).await;
    assert_eq!(all.body, json!({ "retried": 1, "more": false }));
    for (id, code) in [("0", "400 invalid-request"), ("x", "400 invalid-request"), ("999999999", "404 not-found")] {
        assert_eq!(max.post(&format!("outbox/{id}/retry"), json!({})).await.code(), code);
    }
    for wrong in ["status=sent", "kind=x", "before=0", "limit=0"] {
        assert_eq!(max.get(&format!("outbox?{wrong}")).await.code(), "400 invalid-request", "{wrong}");
    }
    assert_eq!(system.value::<i64>("SELECT count(*) FROM audit_log WHERE action = 'outbox retry'").await, 2);
    system.serve(true).await;
    system.left(&sale, 3).await;
    system.settled(&sale).await;
    assert_eq!(system.orders(&sale).await, 2);
    system.finish().await;
}

/// While purchases without an order cannot be read, pages appear without them, and a sale can be paused.
#[tokio::test(flavor = "multi_thread")]
async fn pages_go_without_what_takes_too_long() {
    let mut system = System::without_workers(&[]).await;
    let [root, max, _] = people(&system).await;
    let sale = system.create_sale(terms(100)).await;
    orders(&system, &sale, 3, "1 hour").await;
    let mut lock = system.sql.begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE outbox, purchase_groups, lapsed_holds IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *lock)
        .await
        .unwrap();
    let one_sale = format!("/admin/sales/{}", sale.id);
    let status = format!("sales/{}/status", sale.id);
    // One after the other, so that none waits for the others in the console's line. Each waits in vain for up to 3 s of its 5 s. On a busy
    // machine the rest may be too short, and the request is repeated.
    let shown = async |person: &Person, method: &str, path: &str, body: Option<Value>| {
        let answer = person.call(method, path, body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    };
    let found = shown(&root, "GET", "orders", None).await;
    assert_eq!((&found["lacks_accepted"], ids(&found).len()), (&json!(true), 3), "{found}");
    let lacks = "have no order yet are missing";
    until(true, || async { root.page("/admin/orders").await.1.contains(lacks) }).await;
    let overview = shown(&root, "GET", "overview", None).await;
    assert_eq!(overview["work"], Value::Null, "{overview}");
    shown(&max, "PUT", &status, Some(json!({ "status": "paused" }))).await;
    let shown = ["Counting the orders takes too long", "Counting the lapsed holds takes too long", "Resume the sale"];
    until(true, || async {
        let (_, text) = root.page(&one_sale).await;
        shown.iter().all(|part| text.contains(part)) && !text.contains(&removal(sale.id.get()))
    })
    .await;
    lock.rollback().await.unwrap();

    // The requests that waited for the lock come first.
    until((json!(false), 3, true), || async {
        let again = root.get("orders").await.body;
        let overview = root.get("overview").await.body;
        (again["lacks_accepted"].clone(), ids(&again).len(), overview["work"].is_object())
    })
    .await;
    system.stop().await;
}

/// Above the maximum count, the page says `more`. Parked messages and items are retried a thousand at a time.
#[tokio::test(flavor = "multi_thread")]
async fn the_backlog_is_counted_up_to_a_bound_and_sent_again_in_steps() {
    let mut system = System::without_workers(&[]).await;
    let [_, max, _] = people(&system).await;
    let sale = system.create_sale(terms(5)).await;
    let insert = "INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, returns_units, members, status,
                                      attempts, last_error, created_at, next_attempt_at)
                  SELECT 'hold_release', gen_random_uuid(), $1, 1, 0, true, ARRAY[gen_random_uuid()], $2, 8, 'no', at, at
                  FROM (SELECT now() - n * interval '1 second' AS at FROM generate_series(1, $3) AS n) AS moments";
    let add = async |status: &str, rows: i32| {
        let insert = sqlx::query(insert).bind(sale.id.get()).bind(status).bind(rows);
        insert.execute(&system.sql).await.unwrap();
        max.get("outbox").await.body["to_do"][0].clone()
    };
    let few = add("parked", 2_500).await;
    assert_eq!((&few["parked"], &few["pending"], &few["more"]), (&json!(2_500), &json!(0), &json!(false)), "{few}");
    let all = add("pending", 10_000).await;
    assert_eq!((&all["pending"], &all["more"]), (&json!(10_000), &json!(false)), "{all}");
    let more = add("pending", 20_000).await;
    let counted = (&more["parked"], &more["pending"], &more["more"]);
    assert_eq!(counted, (&json!(2_500), &json!(10_000), &json!(true)), "{more}");
    assert!(more["oldest_s"].as_i64().unwrap() >= 20_000, "{more}");
    assert!(max.page("/admin/outbox").await.1.contains("10\u{202f}000 or more"));

    let target = "http://127.0.0.1:9/take";
    let letters =
        system.stores.ledger.outflows.create_outflow("letters", Pace::parse(10, 15).unwrap(), target, 9_999, "test");
    assert!(letters.await.unwrap());
    let items = "INSERT INTO outflow_items (id, channel, key, payload, status, attempts, last_error)
                 SELECT gen_random_uuid(), 'letters', 'k' || n % 7, '{}', 'parked', 3, 'no' FROM generate_series(1, 2500) AS n";
    system.execute(items).await;
    for (path, action, body, left) in [
        (
            "outbox/retry",
            "outbox retry",
            json!({ "kind": "hold_release" }),
            "SELECT count(*) FROM outbox WHERE status = 'parked'",
        ),
        (
            "outflows/letters/retry",
            "outflow retry",
            json!({}),
            "SELECT count(*) FROM outflow_items WHERE status = 'parked'",
        ),
    ] {
        // On a slow machine this may take more than one request.
        let mut retried = 0;
        loop {
            let answer = max.post(path, body.clone()).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            retried += answer.body["retried"].as_u64().unwrap();
            if answer.body["more"] == false {
                break;
            }
        }
        assert_eq!((retried, system.value::<i64>(left).await), (2_500, 0), "{path}");
        let steps = "SELECT array_agg(coalesce(details->>'rows', details->>'items')::bigint ORDER BY id) FROM audit_log
                     WHERE actor = 'max' AND action = $1";
        let steps: Vec<i64> = sqlx::query_scalar(steps).bind(action).fetch_one(&system.sql).await.unwrap();
        assert_eq!(steps, [1_000, 1_000, 500], "{path}");
    }
    system.stop().await;
}

/// An operator's refund moves money once, however often it is requested. A refused refund is retried under another key.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_refunds_an_order_once() {
    let system = System::shared_with(&UNLIMITED).await;
    let [root, max, vic] = people(&system).await;
    let sale = system.create_sale(terms(5)).await;
    let order = payments_and_callbacks::order(&system, &sale, "ann").await;
    let refund = format!("orders/{order}/refunds");
    let reason = || Some(json!({ "reason": "the box was empty" }));
    assert_eq!(max.call("POST", &refund, reason()).await.code(), "409 illegal-state", "not paid");
    let payment = payments_and_callbacks::paid(&system, order, "ann").await;
    for wrong in
        [json!({}), json!({ "reason": "" }), json!({ "reason": "a\nb" }), json!({ "reason": "x", "amount": 1 })]
    {
        assert_eq!(max.post(&refund, wrong).await.code(), "400 invalid-request");
    }
    let nowhere = format!("orders/{}/refunds", Uuid::nil());
    assert_eq!(max.call("POST", &nowhere, reason()).await.code(), "404 not-found");

    let asked = join_all((0..4).map(|n| (if n % 2 == 0 { &root } else { &max }).call("POST", &refund, reason()))).await;
    let refunds: BTreeSet<String> =
        asked.iter().map(|answer| format!("{} {}", answer.status, answer.body["refund_id"])).collect();
    assert_eq!(refunds.len(), 1, "{refunds:?}");
    assert!(refunds.iter().all(|refund| refund.starts_with("202")), "{refunds:?}");
    // In the shared system, only this test refunds.
    for once in [
        "SELECT count(*) FROM refunds",
        "SELECT count(*) FROM outflow_items",
        "SELECT count(*) FROM journal WHERE entry = 'refund_due'",
        "SELECT count(*) FROM audit_log WHERE action = 'refund order' AND details->>'reason' = 'the box was empty'
           AND actor IN ('root', 'max')",
    ] {
        assert_eq!(system.value::<i64>(once).await, 1, "{once}");
    }

    let key = async || system.value::<Uuid>("SELECT key FROM refunds").await;
    let first = key().await;
    let refused = Callback::of("refund.failed", first, ("payment_key", payment), 100);
    assert_eq!(refused.send(&system).await, 200);
    let failed = max.get("refunds?status=failed").await;
    assert_eq!(failed.body["figures"]["refunds_failed"], 1, "{}", failed.body);
    let row = &failed.body["refunds"][0];
    assert_eq!(row["order_id"], json!(order));
    assert!(row["note"].as_str().unwrap().ends_with(": the box was empty"), "{row}");
    let retry = format!("refunds/{}/retry", row["id"].as_str().unwrap());
    let is_offered = async || max.page("/admin/refunds").await.1.contains(&retry);
    assert!(is_offered().await, "on the page");
    assert_eq!(max.post(&retry, json!({})).await.code(), "200");
    assert_eq!(max.post(&retry, json!({})).await.code(), "404 not-found", "it is under way");
    assert!(!is_offered().await, "on the page");
    let second = key().await;
    assert_ne!(first, second);
    let succeeded = Callback::of("refund.succeeded", second, ("payment_key", payment), 100);
    assert_eq!(succeeded.send(&system).await, 200);
    let whole = max.get(&format!("orders/{order}")).await.body;
    assert_eq!((&whole["order"]["status"], &whole["refunds"][0]["status"]), (&json!("refunded"), &json!("succeeded")));
    assert_eq!(whole["payments"][0]["id"], json!(payment));
    assert_eq!(vic.get(&format!("orders/{order}")).await.body["payments"], json!([]));
    assert_eq!(system.value::<i64>("SELECT count(*) FROM journal WHERE entry = 'refund'").await, 1);
    assert_eq!(max.call("POST", &refund, reason()).await.code(), "409 illegal-state", "it is over");
    system.settled(&sale).await;
}

/// Payments are listed page by page. A callback that contradicts our books is shown until an operator settles it.
#[tokio::test(flavor = "multi_thread")]
async fn payments_and_contradicting_callbacks_are_listed() {
    let system = System::shared_with(&UNLIMITED).await;
    let [root, max, _] = people(&system).await;
    let sale = system.create_sale(terms(5)).await;
    let mut paid = Vec::new();
    for buyer in ["ann", "bob", "eve"] {
        let order = payments_and_callbacks::order(&system, &sale, buyer).await;
        paid.push(payments_and_callbacks::paid(&system, order, buyer).await);
    }
    let (mut seen, mut before) = (Vec::new(), String::new());
    loop {
        let page = max.get(&format!("payments?status=succeeded&limit=2{before}")).await;
        assert_eq!(page.status, 200, "{}", page.body);
        let rows = page.body["payments"].as_array().unwrap().iter();
        seen.extend(
            rows.map(|row| row["id"].as_str().unwrap().parse::<Uuid>().unwrap()).filter(|id| paid.contains(id)),
        );
        let Some(next) = page.body["next_before"].as_str() else { break };
        before = format!("&before={next}");
    }
    paid.reverse();
    assert_eq!(seen, paid, "newest first");
    // No other test in the shared system has failed payments or contradicting callbacks.
    assert_eq!(max.get("payments?status=failed").await.body["payments"], json!([]));
    for wrong in ["payments?status=x", "payments?before=1", "refunds?status=created", "payments/conflicts?before=x"] {
        assert_eq!(max.get(wrong).await.code(), "400 invalid-request", "{wrong}");
    }
    let set_aside = system.stores.ledger.payments.set_aside("sandbox", "msg_1", "another amount", "{\"a\": \"<b>\"}");
    set_aside.await.unwrap();
    let conflicts = max.get("payments/conflicts").await;
    assert_eq!(conflicts.body["conflicts"][0]["problem"], "another amount", "{}", conflicts.body);
    let (_, page) = root.page("/admin/payments").await;
    assert!(page.contains("another amount") && !page.contains("\"<b>\""), "{page}");
    let settle = format!("payments/conflicts/{}/settle", conflicts.body["conflicts"][0]["id"]);
    assert_eq!(max.post(&settle, json!({})).await.code(), "200");
    assert_eq!(max.post(&settle, json!({})).await.code(), "404 not-found");
    assert_eq!(max.get("payments/conflicts").await.body["conflicts"], json!([]));
}

/// An outflow is paused, resumed and given another rate, and each parked item is sent again once.
#[tokio::test(flavor = "multi_thread")]
async fn an_outflow_is_changed_and_its_parked_items_are_sent_again() {
    let mut system = System::without_workers(&[]).await;
    let [root, max, _] = people(&system).await;
    let ledger = &system.stores.ledger;
    let target = "http://ann:secret@127.0.0.1:9/take?key=secret";
    assert!(
        ledger.outflows.create_outflow("letters", Pace::parse(10, 15).unwrap(), target, 100, "test").await.unwrap()
    );
    let insert = "INSERT INTO outflow_items (id, channel, key, payload, status, attempts, last_error)
                  SELECT gen_random_uuid(), 'letters', 'k' || n, '{\"n\": 1}', 'parked', 3, '422 no'
                  FROM generate_series(1, 3) AS n";
    system.execute(insert).await;
    let list = max.get("outflows").await;
    let letters = &list.body["outflows"][0];
    assert_eq!((&letters["name"], &letters["parked"], &letters["rate"]), (&json!("letters"), &json!(3), &json!(10)));
    assert_eq!(letters["target"], "http://127.0.0.1:9/take", "without its secrets");
    assert!(!max.page("/admin/outflows").await.1.contains("secret"));

    let change = async |body: Value| max.put("outflows/letters", body).await;
    let changed = change(json!({ "paused": true, "rate": 20 })).await.body;
    assert_eq!((&changed["paused"], &changed["rate"], &changed["jitter_ms"]), (&json!(true), &json!(20), &json!(15)));
    assert_eq!(change(json!({ "paused": false, "jitter_ms": null })).await.body["paused"], false);
    let lines = "SELECT count(*) FROM audit_log WHERE actor = 'max' AND action LIKE '%outflow%'";
    assert_eq!(system.value::<i64>(lines).await, 3, "the rate, the pause, and its end");
    // The present settings again are no change.
    assert_eq!(change(json!({ "paused": false, "rate": 20 })).await.status, 200);
    assert_eq!(change(json!({})).await.status, 200);
    assert_eq!(system.value::<i64>(lines).await, 3);
    for wrong in [json!({ "rate": 0 }), json!({ "rate": 101 }), json!({ "jitter_ms": -1 }), json!({ "paused": "yes" })]
    {
        assert_eq!(change(wrong).await.code(), "400 invalid-request");
    }
    let nowhere = max.put("outflows/none", json!({ "rate": 5 })).await;
    assert_eq!(nowhere.code(), "404 not-found");

    let items = max.get("outflow-items?outflow=letters&limit=1").await;
    let item = &items.body["items"][0];
    assert_eq!(json!([item["key"], item["error"], item["payload"]]), json!(["k3", "422 no", "{\"n\": 1}"]));
    let older = format!("outflow-items?before={}", items.body["next_before"]);
    assert_eq!(max.get(&older).await.body["items"].as_array().unwrap().len(), 2);
    let retry = format!("outflow-items/{}/retry", item["id"].as_str().unwrap());
    let answers = join_all((0..4).map(|_| max.post(&retry, json!({})))).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 1);
    let all = root.post("outflows/letters/retry", json!({})).await;
    assert_eq!(all.body, json!({ "retried": 2, "more": false }));
    assert_eq!(root.post("outflows/none/retry", json!({})).await.code(), "404 not-found");
    let again = "SELECT count(*) FROM outflow_items WHERE status = 'pending' AND attempts = 0";
    assert_eq!(system.value::<i64>(again).await, 3);
    assert_eq!(system.value::<i64>("SELECT count(*) FROM outflow_keys").await, 3, "each has its turn");
    system.stop().await;
}
