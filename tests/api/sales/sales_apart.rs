//! F24, F37: trouble with one sale does not affect another. After a restart of Redis, requested sales are refilled first, and a sale that
//! cannot be refilled stops no other.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use seckill_buying::sale_work::refill::lock_name;
use seckill_buying::sale_work::refill::supervisor::RefillSupervisor;
use seckill_domain::sale::NewSale;
use seckill_harness::{Sale, System, eventually, terms, until, wait_until};

use crate::redis::own_redis::OwnRedis;

async fn many_sales(system: &System, planned: usize) -> Vec<Sale> {
    let planned = stream::iter(0..planned)
        .map(|_| system.create_sale(NewSale { starts_in_ms: 3_600_000, ends_in_ms: 7_200_000, ..terms(5) }));
    planned.buffer_unordered(8).collect().await
}

pub(crate) async fn sells(system: &System, sale: &Sale) {
    let user = || format!("u{}", uuid::Uuid::new_v4().simple());
    until("202", || async { system.buy(sale, &user()).send().await.code() }).await;
}

/// Waits until all sales have been refilled in Redis since this moment of the database.
async fn all_filled(system: &System, since: DateTime<Utc>) {
    let sql = "SELECT count(*) FROM sale_epochs WHERE run_id IS NULL OR filled_at < $1";
    let left = || sqlx::query_scalar::<_, i64>(sql).bind(since);
    until(0, || async { left().fetch_one(&system.sql).await.unwrap() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_the_live_sale_is_back_before_the_planned_ones() {
    let mut redis = OwnRedis::start().await;
    let system = System::start_with(&[("REDIS_URL", &redis.url())]).await;
    let planned = many_sales(&system, 90).await;
    let live = system.create_sale(terms(50)).await;
    sells(&system, &live).await;
    all_filled(&system, DateTime::UNIX_EPOCH).await;
    for emptied in [true, false] {
        let began: DateTime<Utc> = sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&system.sql).await.unwrap();
        redis.lose_everything(emptied).await;
        sells(&system, &live).await;
        all_filled(&system, began).await;
        let sql = "SELECT count(*) FROM sale_epochs WHERE filled_at <
                   (SELECT filled_at FROM sale_epochs WHERE sale_id = $1) - interval '100 ms'";
        let earlier = system.count(sql, &live).await;
        assert!(earlier < 60, "{earlier} planned sales were filled before the live one");
    }
    system.all_settled(planned.iter().take(5).chain([&live])).await;
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_cannot_be_refilled_stops_itself_alone() {
    let mut redis = OwnRedis::start().await;
    let system = System::start_with(&[("REDIS_URL", &redis.url())]).await;
    let mut sales = Vec::new();
    for _ in 0..6 {
        sales.push(system.create_sale(terms(50)).await);
    }
    let (sick, well) = sales.split_first().unwrap();
    // A transaction that does not end locks the epoch of one sale.
    let blocker = lock(&system, "sale_epochs", sick).await;
    for emptied in [true, false] {
        redis.lose_everything(emptied).await;
        for sale in well {
            sells(&system, sale).await;
        }
        assert_eq!(system.buy(sick, "ann").send().await.status, 503);
    }
    // The other sales continue while this one is retried.
    let failures = "SELECT count(*) FROM sale_epochs WHERE sale_id = $1 AND run_id IS NULL";
    let epochs = || sqlx::query_scalar::<_, i64>("SELECT epoch FROM sale_epochs WHERE sale_id <> $1 ORDER BY sale_id");
    let refilled = epochs().bind(sick.id.get()).fetch_all(&system.sql).await.unwrap();
    let mut asked_again = 0;
    for _ in 0..20 {
        for (n, sale) in well.iter().enumerate() {
            let user = format!("v{n}{}", uuid::Uuid::new_v4().simple());
            if system.buy(sale, &user).send().await.code() != "202" {
                asked_again += 1;
                sells(&system, sale).await;
            }
        }
    }
    // On a busy machine a call may time out. In a stopped sale every call would.
    assert!(asked_again < 10, "{asked_again} of 100 purchases in the other sales failed at first");
    blocker.rollback().await.unwrap();
    sells(&system, sick).await;
    assert_eq!(system.count(failures, sick).await, 0);
    let after = epochs().bind(sick.id.get()).fetch_all(&system.sql).await.unwrap();
    assert_eq!(after, refilled, "the others were not refilled again");
    system.all_settled(&sales).await;
    system.finish().await;
}

/// A transaction that keeps the row of a sale locked, like a forgotten one.
async fn lock(system: &System, table: &str, sale: &Sale) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let column = if table == "sales" { "id" } else { "sale_id" };
    let mut blocker = system.sql.begin().await.unwrap();
    let sql = format!("SELECT FROM {table} WHERE {column} = {} FOR UPDATE", sale.id);
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *blocker).await.unwrap();
    blocker
}

/// F37: the other sales continue, although their messages come together. Afterwards the locked sale catches up.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_whose_row_is_locked_delays_no_other() {
    let system = System::start_with(&[("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "500")]).await;
    let sales = join_all((0..5).map(|_| system.create_sale(terms(50)))).await;
    let (sick, well) = sales.split_first().unwrap();
    // Under an Idempotency-Key, so that a buyer who is refused for a moment buys once.
    let buys = async |sale: &Sale, user: &str| {
        until("202", || async { system.buy(sale, user).idempotent("k").send().await.code() }).await;
    };
    let all_buy = async |user: &str| {
        join_all(sales.iter().map(|sale| buys(sale, user))).await;
    };
    for user in ["ann", "ben", "cat"] {
        all_buy(user).await;
    }
    system.all_settled(&sales).await;
    let blocker = lock(&system, "sales", sick).await;
    for user in ["dan", "eve", "fay"] {
        all_buy(user).await;
    }
    for sale in &sales {
        // The row itself is locked: no wave can be added there now.
        if sale.id != sick.id {
            let sql = "WITH more AS (UPDATE sales SET total_stock = total_stock + 7 WHERE id = $1)
                       INSERT INTO sale_waves (sale_id, units, due_at) VALUES ($1, 7, now())";
            system.change(sql, sale).await;
            system.left(sale, 51).await;
        }
        system.let_deadlines_pass(sale).await;
    }
    for sale in well {
        system.left(sale, 57).await;
        system.settled(sale).await;
    }
    let unsettled = "SELECT count(*) FROM accepted_purchases WHERE sale_id = $1";
    let unpaid = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'pending_payment'";
    assert_eq!((system.count(unsettled, sick).await, system.count(unpaid, sick).await), (3, 3));
    blocker.rollback().await.unwrap();
    system.left(sick, 47).await;
    system.settled(sick).await;
    assert_eq!(system.count(unpaid, sick).await, 3);
    // A message returned by the broker counts as an attempt too.
    let suffered = "SELECT count(*) FROM outbox WHERE status = 'parked'
                      OR attempts > 0 AND last_error IS DISTINCT FROM 'no queue accepts it'";
    let split = "SELECT count(*) FROM purchase_groups WHERE was_split";
    for sql in [suffered, split] {
        assert_eq!(system.number(sql).await, 0, "{sql}");
    }
    system.finish().await;
}

/// F37: purchases of other sales are committed, although they come in the same batches.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_whose_epoch_is_locked_stops_itself_alone() {
    let system = System::start_with(&[("SECKILL_RECONCILE__UNCONFIRMED_AFTER_MS", "500")]).await;
    let sales = join_all((0..5).map(|_| system.create_sale(terms(1_000_000)))).await;
    let (sick, well) = sales.split_first().unwrap();
    let buy = async |sales: &[Sale], round: usize| {
        let (user, from) = (format!("u{round}"), format!("10.4.{}.{}", round / 250 % 250, round % 250));
        join_all(sales.iter().map(|sale| system.buy(sale, &user).from(&from).send())).await
    };
    for sale in &sales {
        sells(&system, sale).await;
    }
    let blocker = lock(&system, "sale_epochs", sick).await;
    let (mut failed, mut rounds) = (0, 0);
    let began = Instant::now();
    // Long enough for several retries of the sale.
    while rounds < 40 || began.elapsed() < Duration::from_secs(8) {
        rounds += 1;
        let answers = buy(&sales, rounds).await;
        assert_eq!(answers[0].status, 503);
        failed += answers[1..].iter().filter(|answer| answer.status != 202).count();
        // Refusals come immediately. With a pause, a second of them is not most of the rounds.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // On a busy machine a call may time out. In a closed shop every call would.
    assert!(failed < 2 * rounds, "{failed} of {} purchases in the other sales failed", 4 * rounds);
    let view = system.stores.gate.sale_view(system.shards(sick).await).await.unwrap().unwrap();
    // One try a second, each with one buyer; the reconciler cannot commit them either.
    let tries = 2 + i64::try_from(began.elapsed().as_secs()).unwrap();
    assert!((1..=tries).contains(&view.unconfirmed), "{} holds after {tries} tries", view.unconfirmed);
    blocker.rollback().await.unwrap();
    sells(&system, sick).await;
    system.all_settled(well.iter().chain([sick])).await;
    system.finish().await;
}

/// Rule 4: a table that all sales need is locked, as while an index is built. No sale can sell, so after a moment no stock is touched.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_all_sales_need_is_found_before_their_stock_is_taken() {
    let system = System::start().await;
    let sale = system.create_sale(terms(1_000_000)).await;
    sells(&system, &sale).await;
    let mut blocker = system.sql.begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE outbox IN SHARE MODE").execute(&mut *blocker).await.unwrap();
    let (began, mut rounds) = (Instant::now(), 0);
    while rounds < 20 || began.elapsed() < Duration::from_secs(6) {
        rounds += 1;
        let users: Vec<String> = (0..10).map(|n| format!("u{rounds}-{n}")).collect();
        let from = format!("10.5.{}.{}", rounds / 250 % 250, rounds % 250);
        let answers = join_all(users.iter().map(|user| system.buy(&sale, user).from(&from).send())).await;
        assert!(answers.iter().all(|answer| answer.status == 503), "{answers:?}");
    }
    let view = system.stores.gate.sale_view(system.shards(&sale).await).await.unwrap().unwrap();
    // A heartbeat from before the lock may open the shop once more, even on a machine that stands still meanwhile. If the shop stayed open,
    // each of at least twenty rounds would take ten units.
    assert!(view.unconfirmed <= 100, "{} holds after {rounds} rounds of ten", view.unconfirmed);
    blocker.rollback().await.unwrap();
    sells(&system, &sale).await;
    system.settled(&sale).await;
    system.finish().await;
}

/// F13 and F37 at once, in one message. The others are settled, and the locked one has lost no attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_poison_purchase_beside_a_locked_sale_delays_no_other() {
    let mut system = System::without_workers(&[
        ("SECKILL_OUTBOX__MAX_ATTEMPTS", "3"),
        ("SECKILL_OUTBOX__BACKOFF_BASE_MS", "10"),
        ("SECKILL_OUTBOX__BACKOFF_MAX_MS", "50"),
    ])
    .await;
    let sales = join_all((0..5).map(|_| system.create_sale(terms(50)))).await;
    // In the order of their ids, one sale is tried before the locked one, and others after it.
    let (poisoned, sick) = (&sales[0], &sales[1]);
    let mut poison = String::new();
    for sale in &sales {
        for user in ["ann", "ben"] {
            let order = system.buy(sale, user).send().await.order_id();
            if sale.id == poisoned.id && user == "ann" {
                poison = order;
            }
        }
    }
    system.refuse("INSERT ON orders", &format!("NEW.id = '{poison}'")).await;
    let blocker = lock(&system, "sales", sick).await;
    system.serve(true).await;
    for sale in &sales[2..] {
        assert_eq!(system.buy(sale, "cat").send().await.code(), "202");
        system.left(sale, 47).await;
        system.settled(sale).await;
    }
    system.left(poisoned, 49).await;
    wait_until(
        || async { system.stores.ledger.outbox.parked(None, None, 10).await.unwrap() },
        |parked| parked.len() == 1,
    )
    .await;
    let suffered = "SELECT count(*) FROM outbox WHERE sale_id = $1
                      AND (status = 'parked' OR attempts > 0 AND last_error IS DISTINCT FROM 'no queue accepts it')";
    assert_eq!(system.count(suffered, sick).await, 0);
    blocker.rollback().await.unwrap();
    system.left(sick, 48).await;
    system.settled(sick).await;
    assert_eq!(system.count(suffered, sick).await, 0);
    system.allow("orders").await;
    let parked = system.stores.ledger.outbox.parked(None, None, 10).await.unwrap().remove(0);
    assert_eq!(system.stores.ledger.outbox.unpark(&[parked.id], "test").await.unwrap(), 1);
    system.settled(poisoned).await;
    system.finish().await;
}

/// A key of the wrong type is deleted like all other contents of a refilled sale.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_is_replaced() {
    let redis = OwnRedis::start().await;
    let mut system = System::prepare(&[("REDIS_URL", &redis.url())]).await;
    system.serve(true).await;
    let (broken, well) = (system.create_sale(terms(5)).await, system.create_sale(terms(50)).await);
    let key = format!("{}{{{}}}:sale", system.config.redis.prefix, broken.id);
    redis.ask(&["SET", &key, "not a hash"]).await.unwrap();
    sells(&system, &well).await;
    sells(&system, &broken).await;
    system.settled(&broken).await;
    system.finish().await;
}

/// Instances that find the server restarted wait for the instance that refills a sale, and do not take it for a second master.
#[tokio::test(flavor = "multi_thread")]
async fn a_refill_by_another_instance_is_no_second_master() {
    let mut redis = OwnRedis::start().await;
    let mut system = System::start_with(&[("REDIS_URL", &redis.url())]).await;
    let sale = system.create_sale(terms(5)).await;
    sells(&system, &sale).await;
    system.settled(&sale).await;
    system.stop().await;
    redis.restart().await;
    let stores = &system.stores;
    let name = lock_name(system.shards(&sale).await, &redis.info("server", "run_id").await);
    let other = eventually(|| async {
        let lock = stores.gate.lock(&name, Duration::from_secs(60)).await;
        lock.map_err(|error| error.to_string())?.ok_or("the lock is held".to_owned())
    })
    .await;
    let mut supervisor = RefillSupervisor::new(stores.clone(), system.config.reconcile.retire_after_ms);
    let refill = async |supervisor: &mut RefillSupervisor| {
        supervisor.check(true).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(60), supervisor.refill_ended()).await;
        ended.expect("the sale rests, as if there were two masters");
    };
    for _ in 0..3 {
        refill(&mut supervisor).await;
    }
    other.release().await.unwrap();
    refill(&mut supervisor).await;
    assert!(system.audit(&sale).await.unwrap().unwrap().redis_compared, "the sale is not served");
    system.finish().await;
}

/// Workers have a low priority: for a while they leave a sale to the selling instances, and refill it only when none of them has.
#[tokio::test(flavor = "multi_thread")]
async fn workers_leave_a_refill_to_others_for_a_while() {
    const PATIENCE: Duration = Duration::from_secs(1);
    let system = System::prepare(&[]).await;
    let sale = system.create_sale(terms(5)).await;
    system.change("UPDATE sale_epochs SET run_id = NULL WHERE sale_id = $1", &sale).await;
    let supervisor = RefillSupervisor::new(system.stores.clone(), system.config.reconcile.retire_after_ms);
    let mut supervisor = supervisor.with_patience(PATIENCE);
    let (epoch, began) = ("SELECT epoch FROM sale_epochs WHERE sale_id = $1", Instant::now());
    let before = system.count(epoch, &sale).await;
    loop {
        supervisor.check(false).await.unwrap();
        _ = tokio::time::timeout(Duration::from_millis(50), supervisor.refill_ended()).await;
        let is_raised = system.count(epoch, &sale).await > before;
        if is_raised {
            assert!(began.elapsed() >= PATIENCE, "begun after {:?}", began.elapsed());
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "nobody fills the sale");
    }
    supervisor.finish().await;
    let filled = "SELECT count(*) FROM sale_epochs WHERE sale_id = $1 AND run_id IS NOT NULL";
    assert_eq!(system.count(filled, &sale).await, 1);
    system.finish().await;
}

/// Redis is killed in the middle of a refill. The lock of that refill is still there when Redis comes back, and delays nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_refill_cut_off_by_the_death_of_redis_is_begun_anew_at_once() {
    let mut redis = OwnRedis::start().await;
    let mut system = System::prepare(&[("REDIS_URL", &redis.url())]).await;
    let sale = system.create_sale(terms(5)).await;
    let name = lock_name(system.shards(&sale).await, &redis.info("server", "run_id").await);
    let cut_off = system.stores.gate.lock(&name, Duration::from_secs(600)).await.unwrap().unwrap();
    drop(cut_off);
    redis.restart().await;
    let key = format!("{}lock:{name}", system.config.redis.prefix);
    assert_eq!(redis.query(&["EXISTS", &key]).await.unwrap(), redis::Value::Int(1), "the lock is gone with the server");
    system.serve(true).await;
    sells(&system, &sale).await;
    system.settled(&sale).await;
    system.finish().await;
}

/// Two instances use different servers, after a failover that only one of them has seen.
#[tokio::test(flavor = "multi_thread")]
async fn two_masters_sell_no_unit_twice() {
    let (left, right) = (OwnRedis::start().await, OwnRedis::start().await);
    let mut system = System::start_with(&[("REDIS_URL", &left.url())]).await;
    let sale = system.create_sale(terms(30)).await;
    sells(&system, &sale).await;
    let url = std::mem::replace(&mut system.config.redis.url, right.url());
    system.serve(true).await;
    let at = [system.instances[0].address, system.instances[1].address];
    let began = Instant::now();
    // 60 buyers, each at both instances until one of them has an answer.
    let buyers = stream::iter(0..60).map(|n| {
        let (system, sale) = (&system, &sale);
        async move {
            let (user, from) = (format!("u{n}"), format!("10.3.0.{n}"));
            let mut turn = n;
            eventually(|| {
                turn += 1;
                let click = system.buy_at(at[turn % 2], sale, &user).idempotent("k").from(&from);
                async move {
                    let answer = click.send().await;
                    let known = ![429, 503].contains(&answer.status);
                    known.then_some(answer.code()).ok_or(answer.code())
                }
            })
            .await
        }
    });
    let answers: Vec<String> = buyers.buffer_unordered(10).collect().await;
    let took = began.elapsed().as_secs();
    // Some may get "sold out" at the older master while the newer one has units. Requests answered 503 may hold some units.
    let won = answers.iter().filter(|answer| *answer == "202").count();
    assert!((1..=29).contains(&won), "{answers:?}");
    let rejected = system.count("SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'rejected'", &sale).await;
    assert_eq!(rejected, 0);
    let epoch = system.count("SELECT epoch FROM sale_epochs WHERE sale_id = $1", &sale).await;
    assert!(epoch <= 4 + i64::try_from(took).unwrap() / 4, "epoch {epoch} after {took} s");
    // Both use one server again.
    system.stop().await;
    system.config.redis.url = url;
    system.serve(true).await;
    system.settled(&sale).await;
    let kept = "SELECT count(*) FROM orders WHERE sale_id = $1 AND length(user_id) <= 3";
    let (kept, orders) = (system.count(kept, &sale).await, system.orders(&sale).await);
    assert!(
        kept >= i64::try_from(won).unwrap() && orders <= 30,
        "{won} winners, {kept} of them with orders, {orders} orders"
    );
    let rejected = system.count("SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'rejected'", &sale).await;
    assert_eq!(rejected, 0);
    system.finish().await;
}
