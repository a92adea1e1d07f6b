//! Tests of the order within a key, of fairness between keys, and of items that fail.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use seckill_delivery::outflow_changes::OutflowChange;
use seckill_domain::delivery::{DeliveryOutcome, ReceiverFailure};
use seckill_postgres::outbox::RetryPolicy;
use seckill_postgres::outflow::items::{EnqueueOutcome, NewItem};
use seckill_postgres::outflow::slots::{Slot, SlotOutcome};
use serde_json::json;
use uuid::Uuid;

use crate::worker_processes::{Works, worker};
use seckill_harness::folder::free_address;
use seckill_harness::outage::outage;
use seckill_harness::receiver::{Receiver, Reply};
use seckill_harness::{eventually, wait_until};

/// Quick retries, but a long time-out: on a busy machine an answer may take seconds, and tests count an item's arrivals.
const QUICK: [(&str, &str); 4] = [
    ("SECKILL_OUTFLOW__REQUEST_TIMEOUT_MS", "20000"),
    ("SECKILL_OUTFLOW__MAX_ATTEMPTS", "3"),
    ("SECKILL_OUTFLOW__BACKOFF_BASE_MS", "100"),
    ("SECKILL_OUTFLOW__BACKOFF_MAX_MS", "200"),
];

const RETRY: RetryPolicy = RetryPolicy { max_attempts: 3, backoff_base_ms: 100, backoff_max_ms: 200 };

async fn arrivals(receiver: &Receiver, number: usize) {
    wait_until(|| async { receiver.seen().len() }, |&seen| seen >= number).await;
}

async fn settled(works: &Works, channel: &str, expected: &[(&str, i64)]) {
    eventually(|| async {
        let is = works.statuses(channel).await;
        let there = is.iter().map(|(status, n)| (status.as_str(), *n)).eq(expected.iter().copied());
        there.then_some(()).ok_or_else(|| format!("{is:?}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_take_turns_and_items_of_a_key_keep_their_order_through_failures() {
    let works = Works::prepare(&QUICK).await;
    // Every third item of key `a` fails once.
    let flaky = |body: &serde_json::Value| body["key"] == "a" && body["n"].as_u64().unwrap().is_multiple_of(3);
    let receiver = Receiver::scripted(move |arrival, before| {
        Reply::status(if before == 0 && flaky(&arrival.body) { 503 } else { 200 })
    });
    works.channel("c", 50, &receiver).await;
    works.put("c", "a", 0..60).await;
    for key in ["b", "c", "d"] {
        works.put("c", key, 0..5).await;
    }
    let _workers = works.workers(4).await;
    settled(&works, "c", &[("done", 75)]).await;
    let mut last = HashMap::<String, u64>::new();
    for arrival in receiver.seen() {
        let (key, n) = (arrival.body["key"].as_str().unwrap(), arrival.body["n"].as_u64().unwrap());
        let expected = last.get(key).map_or(0, |last| last + 1);
        let again = last.get(key) == Some(&n);
        assert!(n == expected || (again && flaky(&arrival.body)), "{key}: {n} after {:?}", last.get(key));
        last.insert(key.to_owned(), n);
    }
    // The three short keys do not wait until the long key is finished.
    let seen = receiver.seen();
    let place = |key: &str| seen.iter().rposition(|arrival| arrival.body["key"] == key).unwrap();
    for key in ["b", "c", "d"] {
        assert!(place(key) < 70, "{key} ended at place {}", place(key));
    }
    let keys: i64 = sqlx::query_scalar("SELECT count(*) FROM outflow_keys").fetch_one(&works.sql).await.unwrap();
    assert_eq!(keys, 0, "keys without items must be deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_parked_at_the_cap_and_refusals_at_once_and_neither_delays_other_items() {
    let works = Works::prepare(&QUICK).await;
    let receiver = Receiver::scripted(|arrival, before| match (arrival.body["key"].as_str().unwrap(), before) {
        ("broken", 0..3) if arrival.body["n"] == 0 => Reply::status(500),
        ("refused", 0) => Reply::status(422),
        ("busy", 0) => Reply { status: 429, headers: "retry-after: 1\r\n", ..Reply::OK },
        _ => Reply::OK,
    });
    works.channel("c", 50, &receiver).await;
    let mut ids = HashMap::new();
    for key in ["broken", "refused", "busy"] {
        ids.insert(key, works.put("c", key, 0..1).await[0].to_string());
    }
    works.put("c", "well", 0..3).await;
    works.put("c", "broken", 1..2).await;
    let _workers = works.workers(3).await;
    settled(&works, "c", &[("done", 5), ("parked", 2)]).await;
    let times = receiver.times();
    let of = |key: &str| times[&ids[key]];
    assert_eq!((of("broken"), of("refused"), of("busy")), (3, 1, 2));
    assert_eq!(attempts(&works, "busy").await, 0, "429 must not count as an attempt");
    let parked = works.ledger.outflows.parked_outflow(None, None, 10).await.unwrap();
    assert_eq!(parked.len(), 2);
    assert!(parked.iter().any(|item| item.last_error.as_deref() == Some("422 ok")), "{parked:?}");
    // Parked items are retried by hand when the receiver works again.
    assert_eq!(works.ledger.outflows.unpark_outflow("c", &[], "test").await.unwrap(), 2);
    settled(&works, "c", &[("done", 7)]).await;
}

/// On a busy machine the second answer may also exceed the worker's time-out, so the item's arrivals are not counted.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_too_late_counts_as_an_attempt() {
    let settings = [("SECKILL_OUTFLOW__REQUEST_TIMEOUT_MS", "2000"), ("SECKILL_OUTFLOW__MAX_ATTEMPTS", "100")];
    let works = Works::prepare(&[&QUICK[..], &settings].concat()).await;
    let receiver = Receiver::scripted(|arrival, before| match (arrival.body["key"].as_str().unwrap(), before) {
        ("slow", 0) => Reply { after: Duration::from_secs(600), ..Reply::OK },
        _ => Reply::OK,
    });
    works.channel("c", 50, &receiver).await;
    let slow = works.put("c", "slow", 0..1).await[0].to_string();
    works.put("c", "well", 0..3).await;
    let _workers = works.workers(3).await;
    settled(&works, "c", &[("done", 4)]).await;
    let times = receiver.times()[&slow];
    assert!(times >= 2, "it came {times} times");
    assert!(attempts(&works, "slow").await >= 1, "an answer that comes too late must count as an attempt");
}

async fn attempts(works: &Works, key: &str) -> i32 {
    let attempts = sqlx::query_scalar("SELECT attempts FROM outflow_items WHERE key = $1").bind(key);
    attempts.fetch_one(&works.sql).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_down_costs_no_attempts_and_the_backlog_leaves_at_the_rate() {
    // A request that times out counts as an attempt, so the timeout is long enough for a receiver that has just started on a
    // busy machine.
    let patient = [QUICK.as_slice(), &[("SECKILL_OUTFLOW__REQUEST_TIMEOUT_MS", "60000")]].concat();
    let works = Works::prepare(&patient).await;
    let absent = Receiver::start();
    works.channel("c", 20, &absent).await;
    let nowhere = free_address();
    let aim = "UPDATE outflow_channels SET target = $1";
    sqlx::query(aim).bind(format!("http://{nowhere}/take")).execute(&works.sql).await.unwrap();
    let _workers = works.workers(4).await;
    works.backlog("c", 30, 30).await;
    eventually(|| async {
        let claims = sqlx::query_scalar("SELECT sum(claims) FROM outflow_items").fetch_one(&works.sql);
        let claims: i64 = claims.await.map_err(|e| e.to_string())?;
        (claims >= 3).then_some(()).ok_or_else(|| format!("tried {claims} times"))
    })
    .await;
    let done = works.statuses("c").await.iter().filter(|(status, _)| status == "done" || status == "parked").count();
    assert_eq!(done, 0, "nothing is done or parked without a receiver");
    let receiver = Receiver::at(nowhere, |_, _| Reply::OK);
    settled(&works, "c", &[("done", 30)]).await;
    let failed: i64 =
        sqlx::query_scalar("SELECT sum(attempts) FROM outflow_items").fetch_one(&works.sql).await.unwrap();
    assert_eq!(failed, 0);
    let mut stamps: Vec<Instant> = receiver.seen().iter().map(|arrival| arrival.at).collect();
    stamps.sort_unstable(); // a slowly read request is recorded after later ones
    for window in stamps.windows(21) {
        assert!(window[20] - window[0] > Duration::from_secs(1), "21 requests arrived within a second");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_is_enqueued_once_in_its_callers_transaction_and_never_above_the_capacity() {
    let works = Works::prepare(&[]).await;
    let receiver = Receiver::start();
    works.channel("c", 10, &receiver).await;
    let item =
        |channel: &str| NewItem { id: Uuid::new_v4(), channel: channel.into(), key: "k".into(), payload: json!({}) };
    let mut tx = works.sql.begin().await.unwrap();
    let given_up = item("c");
    let put = seckill_postgres::outflow::items::enqueue(&mut tx, &given_up).await.unwrap();
    assert_eq!(put, EnqueueOutcome::Taken);
    tx.rollback().await.unwrap();
    assert_eq!(works.statuses("c").await, []);
    let once = item("c");
    assert_eq!(works.ledger.outflows.enqueue_outflow(&once).await.unwrap(), EnqueueOutcome::Taken);
    assert_eq!(works.ledger.outflows.enqueue_outflow(&once).await.unwrap(), EnqueueOutcome::Known);
    assert!(works.ledger.outflows.enqueue_outflow(&item("nowhere")).await.is_err());
    sqlx::query("UPDATE outflow_channels SET capacity = 1").execute(&works.sql).await.unwrap();
    works.ledger.outflows.count_outflow().await.unwrap();
    assert_eq!(works.ledger.outflows.enqueue_outflow(&item("c")).await.unwrap(), EnqueueOutcome::Full);
    let _worker = worker(&works.environment, None);
    arrivals(&receiver, 1).await;
    settled(&works, "c", &[("done", 1)]).await;
    assert_eq!(receiver.seen()[0].idempotency_key, once.id.to_string());
    assert_eq!(
        works.ledger.outflows.enqueue_outflow(&once).await.unwrap(),
        EnqueueOutcome::Known,
        "an item that is done must still be known"
    );
    let keys: i64 = sqlx::query_scalar("SELECT count(*) FROM outflow_keys").fetch_one(&works.sql).await.unwrap();
    assert_eq!(keys, 0);
}

/// Longer than a test takes.
const LEASE: Duration = Duration::from_secs(3_600);

async fn next_slot(works: &Works) -> Slot {
    eventually(|| async {
        let claimed = works.ledger.outflows.claim_slot(&[], &[], LEASE).await.map_err(|e| e.to_string())?;
        claimed.ok_or_else(|| "no slot".to_owned())
    })
    .await
}

async fn set_gap(works: &Works, gap_us: i64) {
    sqlx::query("UPDATE outflow_channels SET gap_us = $1").bind(gap_us).execute(&works.sql).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_sent_item_uses_up_a_slot() {
    let works = Works::prepare(&[]).await;
    works.channel("c", 1, &Receiver::start()).await;
    let next_at = "SELECT next_at FROM outflow_channels";
    let before: DateTime<Utc> = sqlx::query_scalar(next_at).fetch_one(&works.sql).await.unwrap();
    assert!(works.ledger.outflows.claim_slot(&[], &[], LEASE).await.unwrap().is_none());
    assert_eq!(works.ledger.outflows.next_slot(&[], &[]).await.unwrap(), None);
    let after: DateTime<Utc> = sqlx::query_scalar(next_at).fetch_one(&works.sql).await.unwrap();
    assert_eq!(before, after, "an empty channel uses up no slot");

    let ids = works.put("c", "k", 0..2).await;
    works.put("c", "other", 0..2).await;
    // With slots an hour apart, the next one does not come during the test.
    let gap: i64 = sqlx::query_scalar("SELECT gap_us FROM outflow_channels").fetch_one(&works.sql).await.unwrap();
    set_gap(&works, 3_600_000_000).await;
    let first = next_slot(&works).await;
    assert_eq!(first.item, ids[0]);
    assert!(
        works.ledger.outflows.claim_slot(&[], &[], LEASE).await.unwrap().is_none(),
        "two items were given the same slot"
    );
    let following: DateTime<Utc> = sqlx::query_scalar(next_at).fetch_one(&works.sql).await.unwrap();
    works.ledger.outflows.give_back(&first).await.unwrap();
    let is_free = "SELECT next_at <= greatest($1 - interval '1 hour', clock_timestamp()) FROM outflow_channels";
    let is_free: bool = sqlx::query_scalar(is_free).bind(following).fetch_one(&works.sql).await.unwrap();
    assert!(is_free, "the slot was lost");
    set_gap(&works, gap).await;
    let again = next_slot(&works).await;
    assert_eq!(again.item, ids[0], "the item must keep its turn");
    // An item of the first key is being sent, so the other key is next, at least a second later.
    let second = next_slot(&works).await;
    assert_eq!(second.key, "other");
    assert!(second.earliest - again.latest > Duration::from_secs(1));
    // A hole moves the next slot by the given lateness.
    works.ledger.outflows.leave_hole("c", Duration::from_millis(400)).await.unwrap();
    works.ledger.outflows.settle_slot(&again, &DeliveryOutcome::Done, RETRY).await.unwrap();
    let third = next_slot(&works).await;
    assert_eq!(third.item, ids[1]);
    assert!(third.earliest - second.latest > Duration::from_micros(gap.unsigned_abs()) + Duration::from_millis(300));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_rate_leaves_a_second_between_the_old_and_the_new_rate() {
    let works = Works::prepare(&[]).await;
    works.channel("c", 50, &Receiver::start()).await;
    works.backlog("c", 10, 10).await;
    let mut last = next_slot(&works).await;
    for _ in 0..3 {
        last = next_slot(&works).await;
    }
    let slow = OutflowChange { rate: Some(1), jitter_ms: Some(10), ..OutflowChange::default() };
    assert!(works.change("c", slow).await);
    let first = next_slot(&works).await;
    let second = next_slot(&works).await;
    assert!(first.earliest - last.latest > Duration::from_secs(1));
    assert!(second.earliest - first.latest > Duration::from_secs(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_whose_lease_expired_can_only_report_that_the_item_is_done() {
    let works = Works::prepare(&[]).await;
    works.channel("c", 50, &Receiver::start()).await;
    works.put("c", "k", 0..2).await;
    let short = Duration::from_millis(200);
    let expired = works.ledger.outflows.claim_slot(&[], &[], short).await.unwrap().unwrap();
    let successor = next_slot(&works).await;
    assert_eq!(successor.item, expired.item, "the lease must have expired");
    let late = ReceiverFailure { why: "late".into(), asks_pause: None, may_have_taken_effect: true };
    let late = DeliveryOutcome::Failed(late);
    assert_eq!(works.ledger.outflows.settle_slot(&expired, &late, RETRY).await.unwrap(), SlotOutcome::Overtaken);
    assert_eq!(
        works.ledger.outflows.settle_slot(&successor, &DeliveryOutcome::Refused("no".into()), RETRY).await.unwrap(),
        SlotOutcome::Parked
    );
    // The first sender reports that the receiver accepted the item.
    assert_eq!(
        works.ledger.outflows.settle_slot(&expired, &DeliveryOutcome::Done, RETRY).await.unwrap(),
        SlotOutcome::Done
    );
    assert_eq!(
        works.ledger.outflows.settle_slot(&successor, &DeliveryOutcome::Done, RETRY).await.unwrap(),
        SlotOutcome::Overtaken
    );
    assert_eq!(next_slot(&works).await.payload["n"], 1);
}

/// I5: a sender dies before the request, after the request, and after the outcome is written.
#[cfg(feature = "failpoints")]
#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_any_failpoint_delivers_each_item() {
    // An item of a dead worker is sent again five seconds after this time, and the test waits for it.
    let settings = [QUICK.as_slice(), &[("SECKILL_OUTFLOW__REQUEST_TIMEOUT_MS", "10000")]].concat();
    for (place, sent) in [("outflow.claimed", 1), ("outflow.sent", 2), ("outflow.settled", 1)] {
        let works = Works::prepare(&settings).await;
        let receiver = Receiver::start();
        works.channel("c", 10, &receiver).await;
        let ids = works.put("c", "k", 0..3).await;
        let mut victim = worker(&works.environment, Some(&format!("{place}=1*off->return")));
        eventually(|| {
            let ended = victim.has_ended();
            async move { ended.then_some(()).ok_or_else(|| format!("{place} was not reached")) }
        })
        .await;
        let _others = works.workers(2).await;
        settled(&works, "c", &[("done", 3)]).await;
        let times = receiver.times();
        let times: Vec<usize> = ids.iter().map(|id| times[&id.to_string()]).collect();
        assert_eq!(times, [1, sent, 1], "{place}");
    }
}

/// Each item of its own key. The receiver answers 503 for an hour, then everything leaves; nothing was parked or counted more than in the
/// first moments.
#[tokio::test(flavor = "multi_thread")]
async fn an_hours_outage_of_the_receiver_parks_nothing() {
    let works = Works::prepare(&QUICK).await;
    let well = Arc::new(AtomicBool::new(false));
    let mended = Arc::clone(&well);
    let receiver = Receiver::scripted(move |_, _| match mended.load(Ordering::Relaxed) {
        true => Reply::OK,
        false => Reply { headers: "retry-after: 20\r\n", ..Reply::status(503) },
    });
    works.channel("c", 50, &receiver).await;
    for key in 0..30 {
        works.put("c", &format!("k{key}"), 0..2).await;
    }
    let _workers = works.workers(3).await;
    let probes = outage(&works.sql, "outflow c", Duration::from_secs(3_600)).await;
    assert!((30..=180).contains(&probes), "{probes} probes in an hour, of a receiver that asks for 20 s");
    let (arrived, statuses) = (receiver.seen().len(), works.statuses("c").await);
    assert!(arrived < 250, "{arrived} requests in an hour");
    assert!(statuses.iter().all(|(status, _)| status != "parked"), "{statuses:?}");
    well.store(true, Ordering::Relaxed);
    sqlx::query("UPDATE receivers_away SET pauses_until = now()").execute(&works.sql).await.unwrap();
    settled(&works, "c", &[("done", 60)]).await;
    let accepted: HashSet<String> =
        receiver.seen().iter().skip(arrived).map(|arrival| arrival.idempotency_key.clone()).collect();
    assert_eq!(accepted.len(), 60);
    assert_eq!(receiver.seen().len() - arrived, 60, "each once");
}
