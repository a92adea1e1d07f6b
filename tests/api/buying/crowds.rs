//! A crowd of one kind does not affect callers who want something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::header::RETRY_AFTER;

use seckill_harness::{Click, PATIENCE, Sale, System, eventually, terms, until};

use crate::backoffice::admin_api::{Person, account};
use crate::buying::purchase_groups::only_ones;
use crate::buying::purchase_limits::accepted_at_once;
use crate::redis::own_redis::OwnRedis;
use seckill_domain::account::AccountRole;

const SENT: &str = "SELECT count(*) FROM outbox WHERE sale_id = $1 AND status <> 'pending'";

/// While purchases wait elsewhere, the relay rests after each step. Rows older than five seconds are settled at full speed.
#[tokio::test(flavor = "multi_thread")]
async fn settling_gives_way_to_purchases_and_never_stops() {
    let system =
        System::start_with(&[("SECKILL_OUTBOX__BATCH_MAX", "1"), ("SECKILL_PURCHASE__WAIT_TARGET_MS", "250")]).await;
    // A row for each purchase, and so a step of the relay for each.
    only_ones(&system).await;
    let sale = system.create_sale(terms(100)).await;
    let (sql, reports, longest_gap_ms) =
        (system.sql.clone(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let (reported, gap_ms) = (Arc::clone(&reports), Arc::clone(&longest_gap_ms));
    let crowd = tokio::spawn(async move {
        let mut last = Instant::now();
        loop {
            sqlx::query("SELECT pg_notify('seckill_pressure', '200000')").execute(&sql).await.unwrap();
            let gap = last.elapsed();
            last += gap;
            gap_ms.fetch_max(u64::try_from(gap.as_millis()).unwrap(), Ordering::SeqCst);
            reported.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    // The instance receives reports of purchases on the same connection.
    buy_all(&system, &sale, 1).await;
    system.settled(&sale).await;
    let seen = reports.load(Ordering::SeqCst);
    until(true, || async { reports.load(Ordering::SeqCst) > seen + 1 }).await;
    let began = Instant::now();
    let at_first = system.count(SENT, &sale).await;
    buy_all(&system, &sale, 100).await;
    // The relay continues.
    let (since, before) = eventually(|| async {
        longest_gap_ms.store(0, Ordering::SeqCst);
        let (now, sent) = (Instant::now(), system.count(SENT, &sale).await);
        (sent > at_first).then_some((now, sent)).ok_or_else(|| "nothing is sent".to_owned())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (done, took) = (system.count(SENT, &sale).await - before, since.elapsed());
    // The relay rests a tenth of a second after each step. A report counts for half a second, and a backlog of five seconds ends the rests.
    // On a machine that is too busy for either, the number proves nothing. A report may also reach the instance late: then the relay did
    // not rest for a moment. Without rests nearly all rows are sent in these two seconds.
    let has_rested = longest_gap_ms.load(Ordering::SeqCst) < 300 && began.elapsed() < Duration::from_millis(4500);
    let steps_max = i64::try_from(took.as_millis() / 60).unwrap() + 2;
    assert!(done <= steps_max || !has_rested, "{done} rows were sent in {took:?}");
    system.settled(&sale).await;
    assert!(!crowd.is_finished(), "the crowd was there all the time");
    crowd.abort();
    system.finish().await;
}

/// The table of orders is locked, so its readers wait in line, or are refused when it is full. All else continues.
#[tokio::test(flavor = "multi_thread")]
async fn reads_that_hang_hold_up_neither_purchases_nor_people() {
    let system = System::start_with(&[("SECKILL_HTTP__LINE_MAX", "20")]).await;
    account(&system, "ann", AccountRole::Admin).await;
    let sales = join_all((0..5).map(|_| system.create_sale(terms(20)))).await;
    buy_all(&system, &sales[0], 1).await;
    system.settled(&sales[0]).await;
    let mut lock = system.sql.begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
    // More requests than the line holds, so some are refused immediately. A request in line is refused after two seconds: an earlier answer
    // means that the line was full. On a busy machine all answers may take longer, and others ask. Each is answered, although the table
    // stays locked.
    let lists = eventually(|| async {
        let lists = join_all((0..60).map(|_| async {
            let sent = Instant::now();
            let status = system.get("/api/v1/orders", Some("reader")).await.0;
            (status, sent.elapsed())
        }));
        let lists = lists.await;
        assert!(lists.iter().all(|(status, _)| *status == 503), "{lists:?}");
        let at_once = lists.iter().any(|(_, took)| *took < Duration::from_millis(1_900));
        at_once.then_some(()).ok_or_else(|| format!("the line was not full: {lists:?}"))
    });
    let buyers = async {
        let mut at_once = 0;
        for (n, sale) in sales.iter().enumerate().cycle().take(50) {
            let user = format!("u{n}{}", uuid::Uuid::new_v4().simple());
            at_once += usize::from(accepted_at_once(system.buy(sale, &user).idempotent("k")).await);
        }
        assert!(at_once > 40, "{at_once} of 50 purchases were accepted at once");
        Person::sign_in(&system, "ann").await;
        assert_eq!(system.get("/healthz", None).await.0, 200);
    };
    tokio::join!(lists, buyers);
    let reads = join_all((0..50).map(|_| async {
        let order = uuid::Uuid::new_v4();
        system.get(&format!("/api/v1/orders/{order}"), Some("reader")).await.0
    }));
    assert_eq!(reads.await, [503; 50], "it takes too long");
    lock.rollback().await.unwrap();
    let orders = async || system.get("/api/v1/orders", Some("c0")).await.1.as_array().map(Vec::len);
    until(Some(1), orders).await;
    join_all(sales.iter().map(|sale| system.settled(sale))).await;
    system.finish().await;
}

/// A buyer who reads too often is refused. Others continue to read.
#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_may_read_so_often() {
    let system = System::start_with(&[("SECKILL_HTTP__BUYER_READS", "3")]).await;
    let sale = system.create_sale(terms(2)).await;
    buy_all(&system, &sale, 2).await;
    // Many at once, so that even a slow machine gets more than three within a second.
    until(true, || async {
        let answers = join_all((0..20).map(|_| system.get("/api/v1/orders", Some("c0")))).await;
        answers.iter().any(|(status, body)| *status == 429 && body["code"] == "quota-exceeded")
    })
    .await;
    assert_eq!(system.get("/api/v1/orders", Some("c1")).await.0, 200);
    // In the next second.
    until(200, || async { system.get("/api/v1/orders", Some("c0")).await.0 }).await;
    system.finish().await;
}

/// Redis is slower than the crowd: some requests are refused, and take no stock. A ticket holder who repeats is never refused, nor is a buyer
/// of another sale.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_is_too_large_is_shed_and_no_winner_of_it() {
    let redis = OwnRedis::start().await;
    let settings = [
        ("REDIS_URL", &*redis.url()),
        // A paused Redis is slow, and not dead.
        ("SECKILL_REDIS__RESPONSE_TIMEOUT_MS", "10000"),
        ("SECKILL_PURCHASE__WAIT_TARGET_MS", "5"),
        ("SECKILL_PURCHASE__BUYER_LIMIT", "-1"),
        ("SECKILL_PURCHASE__ADDRESS_LIMIT", "-1"),
    ];
    let system = System::start_with(&settings).await;
    let (sale, calm) = (system.create_sale(terms(100_000)).await, system.create_sale(terms(100_000)).await);
    buy_all(&system, &sale, 20).await;
    let (over, shed, won) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let over = &over;
    let slow = async {
        while !over.load(Ordering::SeqCst) {
            // On a busy machine the command itself may be delayed for too long.
            _ = redis.ask(&["CLIENT", "PAUSE", "300", "ALL"]).await;
            tokio::time::sleep(Duration::from_millis(310)).await;
        }
    };
    let crowd = join_all((0..60).map(|n| {
        let (system, sale, shed, won) = (&system, &sale, &shed, &won);
        async move {
            for turn in 0.. {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let answer = system.buy(sale, &format!("n{n}x{turn}")).send().await;
                match answer.status {
                    202 => _ = won.fetch_add(1, Ordering::SeqCst),
                    503 => {
                        assert_eq!(answer.headers[RETRY_AFTER], "1");
                        shed.fetch_add(1, Ordering::SeqCst);
                    }
                    _ => panic!("{}", answer.code()),
                }
            }
        }
    }));
    let winners = async {
        let (mut repeats, mut unanswered, began) = (0, 0, Instant::now());
        while repeats < 40 || shed.load(Ordering::SeqCst) < 200 {
            let (user, other) = (format!("c{}", repeats % 20), format!("q{repeats}"));
            let never_shed = [system.buy(&sale, &user).idempotent("k"), system.buy(&calm, &other)];
            for answer in join_all(never_shed.map(Click::send)).await {
                // Redis may answer late on a busy machine, which is rare, while shedding would hit every second one.
                if answer.status == 503 {
                    unanswered += 1;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                let so_far = format!("after {repeats} repeats, {unanswered} unanswered, {shed:?} shed, {won:?} won");
                assert!(answer.status == 202 || unanswered <= 2 + repeats / 20, "{}, {so_far}", answer.code());
            }
            repeats += 1;
            assert!(began.elapsed() < PATIENCE, "{shed:?} shed, {won:?} won");
        }
        over.store(true, Ordering::SeqCst);
    };
    tokio::join!(slow, crowd, winners);
    assert!(won.load(Ordering::SeqCst) > 0);
    until("202", || async {
        let user = format!("late{}", uuid::Uuid::new_v4().simple());
        system.buy(&sale, &user).send().await.code()
    })
    .await;
    system.settled(&sale).await;
    system.settled(&calm).await;
    system.finish().await;
}

/// Buyers `c0`, `c1` and so on buy a unit each, with the Idempotency-Key `k`.
async fn buy_all(system: &System, sale: &Sale, buyers: usize) {
    let users: Vec<String> = (0..buyers).map(|n| format!("c{n}")).collect();
    for some in users.chunks(50) {
        let bought = some.iter().map(|user| {
            until("202", move || async move { system.buy(sale, user).idempotent("k").send().await.code() })
        });
        join_all(bought).await;
    }
}
