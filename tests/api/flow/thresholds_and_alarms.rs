//! Counts of requests to policies, adaptive thresholds, and alarms.

use seckill_domain::limiter::{Algorithm, AlgorithmKind, Parameters};
use seckill_domain::policy::{Name, NewPolicy, Range};
use seckill_flow::policy_counts::{recent, write_minutes};
use seckill_flow::threshold_controller::move_thresholds;
use seckill_redis::limiter::policy_counts::PolicyCounts;
use seckill_webhook::{Secret, verify};
use serde_json::json;

use crate::buying::purchase_limits::answered;
use crate::flow::callers_apart::{keys, redis};
use crate::flow::permits_and_policies::{Caller, a_day, policy, remove, set};
use crate::network::broken_network::wired_with;
use seckill_harness::receiver::{Arrival, Receiver};
use seckill_harness::{System, eventually, terms, until, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_by_the_second_and_by_the_minute() {
    let system = System::shared().await;
    let shop = Caller::new(&system, "counted-shop").await;
    set(&system, policy("counted-shop", "login", a_day(3))).await;
    for _ in 0..10 {
        shop.code(json!({ "app": "counted-shop", "policy": "login" })).await;
    }
    let (ledger, gate) = (&system.stores.ledger, &system.stores.gate);
    let id = ledger.policies.policies(Some(&Name::parse("counted-shop", "app").unwrap())).await.unwrap()[0].id;
    until((3, 7), || async {
        let PolicyCounts { granted, refused, .. } = recent(gate, id, 60).await.unwrap();
        (granted, refused)
    })
    .await;
    // A minute is written when it is over. This minute was already over, and is written twice.
    let minute = gate.now_s().await.unwrap() / 60 - 2;
    for _ in 0..2 {
        let counts = PolicyCounts { granted: 5, refused: 4, waited_ms: 3, ..PolicyCounts::default() };
        gate.add_policy_counts(minute * 60 + 7, &[(id, counts)]).await.unwrap();
        write_minutes(&ledger.policies, gate).await.unwrap();
    }
    let rows: Vec<(i64, i64, i64)> = sqlx::query_as(
        "SELECT granted, refused, waited_ms FROM policy_minutes
         WHERE minute = to_timestamp($1::bigint * 60) AND policy_id = $2",
    )
    .bind(minute)
    .bind(id)
    .fetch_all(&system.sql)
    .await
    .unwrap();
    assert_eq!(rows, [(10, 8, 6)]);
}

/// Slow calls lower the threshold, refusals without trouble raise it, and it stays between floor and ceiling.
#[tokio::test(flavor = "multi_thread")]
async fn a_threshold_follows_the_reports_of_callers() {
    let system = System::start_with(&[("SECKILL_FLOW__ADAPT_INTERVAL_MS", "1000")]).await;
    let shop = Caller::new(&system, "shop").await;
    let windows = Parameters { limit: Some(60), window_ms: Some(1_000), ..Parameters::default() };
    let algorithm = Algorithm::new(AlgorithmKind::FixedWindow, &windows).unwrap();
    let range = Some(Range { floor: 20, ceiling: 100, target_ms: Some(50) });
    set(&system, NewPolicy { range, ..policy("shop", "bank", algorithm) }).await;
    let threshold =
        || async { sqlx::query_scalar::<_, i64>("SELECT adapted FROM policies").fetch_one(&system.sql).await.unwrap() };
    let call = |took_ms: u64| {
        let shop = &shop;
        async move {
            let answer = shop.ask(json!({ "app": "shop", "policy": "bank" })).await;
            if answer["code"] == 1 {
                let give = json!({ "app": "shop", "policy": "bank", "lease": answer["lease"], "outcome": "ok", "took_ms": took_ms });
                assert_eq!(shop.post("release", &give).await.0, 200);
            }
        }
    };
    until(20, || async {
        for _ in 0..15 {
            call(500).await;
        }
        threshold().await
    })
    .await;
    let after_calls = || async {
        futures_util::future::join_all((0..150).map(|_| call(1))).await;
        threshold().await
    };
    wait_until(after_calls, |at| *at > 20).await;
    let moves: Vec<(i64, i64)> = sqlx::query_as(
        "SELECT (details->>'from')::bigint, (details->>'to')::bigint FROM audit_log
         WHERE actor = 'controller' ORDER BY id",
    )
    .fetch_all(&system.sql)
    .await
    .unwrap();
    assert_eq!(moves[..2], [(60, 42), (42, 30)]);
    assert!(moves.iter().all(|(_, to)| (20..=100).contains(to)), "{moves:?}");
    // A limit that the owner sets replaces the moved one.
    set(&system, NewPolicy { range: None, ..policy("shop", "bank", algorithm) }).await;
    let policy =
        system.stores.ledger.policies.policies(Some(&Name::parse("shop", "app").unwrap())).await.unwrap().remove(0);
    assert_eq!(policy.algorithm, algorithm);
    system.finish().await;
}

/// A webhook receives both the raising and the clearing of an alarm, signed.
#[tokio::test(flavor = "multi_thread")]
async fn alarms_are_raised_once_and_cleared() {
    let receiver = Receiver::start();
    let (url, secret) = (receiver.url(), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let settings = [("SECKILL_ALARMS__WEBHOOK_URL", url.as_str()), ("SECKILL_ALARMS__WEBHOOK_SECRET", secret)];
    let (system, wire) = wired_with("REDIS_URL", &settings).await;
    let open = |kind: &'static str| {
        let system = &system;
        async move {
            let alarms = system.stores.ledger.alarms.alarms(None, None, 100).await.unwrap();
            let of_kind = alarms.iter().filter(|alarm| alarm.kind == kind);
            (of_kind.clone().filter(|alarm| alarm.cleared_at.is_none()).count(), of_kind.count())
        }
    };
    let shop = Caller::new(&system, "shop").await;
    set(&system, policy("shop", "login", a_day(1))).await;
    for n in 0..120 {
        let key = format!("k{}", n % 2);
        shop.code(json!({ "app": "shop", "policy": "login", "key": key })).await;
    }
    // Immediately: they are counted over the last minute.
    until((1, 1), || open("refusals")).await;
    let sale = system.create_sale(terms(1)).await;
    answered(system.buy(&sale, "ann").idempotent("k")).await;
    system.settled(&sale).await;
    system.execute("UPDATE outbox SET status = 'parked', last_error = 'test' WHERE kind = 'group_placed'").await;
    wire.cut();
    for kind in ["parked", "limiter-down"] {
        until((1, 1), || open(kind)).await;
    }
    wire.mend();
    system.execute("UPDATE outbox SET status = 'processed', last_error = NULL WHERE kind = 'group_placed'").await;
    for kind in ["parked", "limiter-down"] {
        until((0, 1), || open(kind)).await;
    }
    remove(&system, "shop", "login").await;
    until((0, 1), || open("refusals")).await;
    for expected in ["alarm.raised", "alarm.cleared"] {
        let found = |alarm: &Arrival| alarm.body["type"] == expected && alarm.body["data"]["subject"] == "group_placed";
        let alarm = eventually(|| {
            let alarm = receiver.seen().into_iter().find(found);
            std::future::ready(alarm.ok_or_else(|| format!("no {expected}")))
        })
        .await;
        let [id, at, signature] = ["id", "timestamp", "signature"].map(|name| alarm.header(&format!("webhook-{name}")));
        let (keys, now_s) = ([Secret::parse(secret).unwrap()], chrono::Utc::now().timestamp());
        verify(&keys, &id, &at, &signature, &alarm.bytes, now_s).unwrap();
        assert_eq!(alarm.body["data"]["kind"], "parked");
        assert_eq!(alarm.body["data"]["runbook"], "docs/runbooks/parked.md");
    }
    system.finish().await;
}

/// Workers share one state: the last trouble is stored, and a later worker grows past it by small steps.
#[tokio::test(flavor = "multi_thread")]
async fn thresholds_have_one_state_for_all_workers() {
    let system = System::without_workers(&[]).await;
    let range = Some(Range { floor: 20, ceiling: 220, target_ms: None });
    set(&system, NewPolicy { range, ..policy("shop", "bank", a_day(100)) }).await;
    let (ledger, gate) = (&system.stores.ledger, &system.stores.gate);
    let id: i64 = system.value("SELECT id FROM policies").await;
    let seen = async |errors: u64| {
        for key in keys(&system, "").await {
            redis::<i64>(&system, &["DEL", &key]).await;
        }
        let counts = PolicyCounts { granted: 100, refused: 50, reports: 100, errors, ..PolicyCounts::default() };
        gate.add_policy_counts(gate.now_s().await.unwrap() - 2, &[(id, counts)]).await.unwrap();
        system.execute("UPDATE policies SET adapted_at = NULL").await;
        move_thresholds(&ledger.policies, gate, 3600).await.unwrap();
        system.value::<i64>("SELECT adapted FROM policies").await
    };
    assert_eq!(seen(90).await, 70);
    system.execute("UPDATE policies SET adapted = 95").await;
    assert_eq!(seen(0).await, 97, "a small step: there was trouble at 100");
    system.finish().await;
}
