//! A19: a misbehaving caller of flow control is not taken for a fault of the limiter, and does not affect other callers.

use std::collections::HashSet;
use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use seckill_domain::breaker::BreakerSettings;
use seckill_domain::delivery::{DeliveryOutcome, ReceiverFailure, Standing};
use seckill_domain::limiter::{Algorithm, AlgorithmKind, Parameters};
use seckill_domain::policy::{Excess, Name, NewPolicy, Range, WhenDown};
use seckill_flow::policy_changes;
use serde_json::json;
use tokio::task::JoinSet;

use crate::buying::purchase_limits::answered;
use crate::flow::permits_and_policies::{Caller, a_day, patient, policy, set};
use crate::network::broken_network::{wired, wired_with};
use crate::redis::own_redis::OwnRedis;
use seckill_harness::{System, redis_at, until};

/// Asks the server directly.
pub async fn redis<T: redis::FromRedisValue>(system: &System, words: &[&str]) -> T {
    let mut connection = redis_at(&system.config.redis.url).await.unwrap();
    redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await.unwrap()
}

/// The keys of this test that contain this text.
pub async fn keys(system: &System, text: &str) -> Vec<String> {
    redis(system, &["KEYS", &format!("{}*{text}*", system.config.redis.prefix)]).await
}

/// Waits until this many callers stand in line.
async fn in_line(system: &System, callers: i64) {
    until(callers, || async {
        let mut waiting = 0;
        for line in keys(system, ":places:").await {
            waiting += redis::<i64>(system, &["ZCARD", &line]).await;
        }
        waiting
    })
    .await;
}

pub async fn open_alarms(system: &System) -> Vec<String> {
    let alarms = system.stores.ledger.alarms.alarms(None, None, 100).await.unwrap().into_iter();
    alarms.filter(|alarm| alarm.cleared_at.is_none()).map(|alarm| format!("{} {}", alarm.kind, alarm.subject)).collect()
}

pub async fn alarm(system: &System, named: &str) {
    until(true, || async { open_alarms(system).await.iter().any(|alarm| alarm == named) }).await;
}

fn queued(patience_ms: u32, algorithm: Algorithm) -> NewPolicy {
    let excess = Excess::parse(&format!("queue:{patience_ms}")).unwrap();
    NewPolicy { excess, ..policy("shop", "slow", algorithm) }
}

fn places(limit: i64) -> Algorithm {
    let terms = Parameters { limit: Some(limit), lease_ms: Some(600_000), ..Parameters::default() };
    Algorithm::new(AlgorithmKind::Concurrency, &terms).unwrap()
}

/// The number of permits that each well-behaved caller asks for, and that they get together.
const ASKED: i64 = 40;
const PERMITS: i64 = 150;
const CALLERS: usize = 5;

/// Asks for permits and for places. Returns the number of granted permits.
async fn ask_well(caller: Caller) -> i64 {
    let mut granted = 0;
    for _ in 0..ASKED {
        for policy in ["pay", "places"] {
            let answer = caller.ask(json!({ "app": "bank", "policy": policy })).await;
            assert_ne!(answer["reason"], "limiter-down", "{answer}");
            if policy == "pay" {
                granted += i64::from(answer["code"] == 1);
            } else {
                assert_eq!(answer["code"], 1, "{answer}");
                let give = json!({ "app": "bank", "policy": policy, "lease": answer["lease"] });
                let (status, released, _) = caller.post("release", &give).await;
                assert_eq!((status, &released["released"]), (200, &json!(true)), "{released}");
            }
        }
    }
    granted
}

/// Sends nonsense, waits in line and hangs up, and takes probes without reporting them, until the task is ended.
async fn misbehave(caller: Caller) {
    let mut pace = tokio::time::interval(Duration::from_secs(1));
    loop {
        pace.tick().await;
        let slow = json!({ "app": "shop", "policy": "slow" });
        let mut waiting = JoinSet::new();
        for _ in 0..40 {
            let (caller, slow) = (caller.clone(), slow.clone());
            waiting.spawn(async move { caller.ask(slow).await });
        }
        let twice = json!({ "app": "shop", "policy": "login", "also": [{ "policy": "login" }] });
        let wrong = json!({ "app": "shop", "policy": "login", "permits": "many", "key": 7 });
        let huge = json!({ "app": "shop", "policy": "login", "permits": i64::MAX });
        for _ in 0..5 {
            for body in [&twice, &wrong, &huge] {
                assert_eq!(caller.post("acquire", body).await.0, 400);
            }
            caller.ask(json!({ "app": "shop", "policy": "probed" })).await;
        }
        pace.tick().await;
        drop(waiting);
    }
}

/// Five callers of a harmful application, and five of a well-behaved one: the second gets exactly its usual permits.
#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_application_takes_nothing_from_another() {
    let mut system = patient(&[]).await;
    system.serve(false).await;
    let hostile = Caller::new(&system, "shop").await;
    let well = Caller::new(&system, "bank").await;
    set(&system, policy("bank", "pay", a_day(PERMITS))).await;
    set(&system, policy("bank", "places", places(i64::try_from(CALLERS).unwrap()))).await;
    set(&system, policy("shop", "login", a_day(1000))).await;
    set(&system, queued(60_000, places(1))).await;
    let breaker = BreakerSettings { min_calls: 2, open_ms: 100, probes: 1, ..BreakerSettings::default() };
    set(&system, NewPolicy { breaker: Some(breaker), ..policy("shop", "probed", a_day(1_000_000)) }).await;
    // Each caller has connections of its own.
    let at = |token: &str, n: usize| Caller::of(token.to_owned(), system.instances[n % 2].address);
    let mut harming: JoinSet<()> = (0..CALLERS).map(|n| misbehave(at(&hostile.token, n))).collect();
    until(false, || async { keys(&system, ":places:").await.is_empty() }).await;
    let well: JoinSet<i64> = (0..CALLERS).map(|n| ask_well(at(&well.token, n))).collect();
    assert_eq!(well.join_all().await.into_iter().sum::<i64>(), PERMITS);
    assert!(harming.try_join_next().is_none(), "a caller that harms has ended by itself");
    drop(harming);
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_and_key_twice_is_refused_and_uses_up_nothing() {
    let system = System::shared().await;
    let careless = Caller::new(&system, "careless").await;
    set(&system, policy("careless", "login", a_day(1000))).await;
    let ask = |key: &str| json!({ "app": "careless", "policy": "login", "key": "k", "also": [{ "policy": "login", "key": key }] });
    let (status, answer, _) = careless.post("acquire", &ask("k")).await;
    assert_eq!((status, &answer["code"]), (400, &json!("invalid-request")), "{answer}");
    assert_eq!(careless.ask(ask("l")).await["remaining"], 999);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_a_script_is_an_alarm_and_concerns_one_policy() {
    let system = patient(&[]).await;
    let (broken, well) = (Caller::new(&system, "shop").await, Caller::new(&system, "bank").await);
    set(&system, policy("shop", "login", a_day(1000))).await;
    set(&system, policy("bank", "pay", a_day(1000))).await;
    let ask = json!({ "app": "shop", "policy": "login" });
    assert_eq!(broken.code(ask.clone()).await, 1);
    let key = keys(&system, "{flow:shop}").await.remove(0);
    redis::<i64>(&system, &["DEL", &key]).await;
    redis::<i64>(&system, &["RPUSH", &key, "not a count"]).await;
    for _ in 0..40 {
        let answer = broken.ask(ask.clone()).await;
        assert_eq!((&answer["code"], &answer["reason"]), (&json!(-1), &json!("limiter-down")));
        assert_eq!(well.code(json!({ "app": "bank", "policy": "pay" })).await, 1);
    }
    alarm(&system, "limiter-broken login of shop").await;
    redis::<i64>(&system, &["DEL", &key]).await;
    assert_eq!(broken.code(ask).await, 1);
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_breaker_of_a_policy_on_trial_changes_nothing_for_others() {
    let system = patient(&[]).await;
    let shop = Caller::new(&system, "shop").await;
    let breaker = BreakerSettings { min_calls: 2, open_ms: 3_600_000, ..BreakerSettings::default() };
    let trial = NewPolicy { excess: Excess::Shadow, breaker: Some(breaker), ..policy("shop", "trial", a_day(1000)) };
    set(&system, trial).await;
    set(&system, policy("shop", "login", a_day(1))).await;
    for _ in 0..2 {
        let lease = shop.ask(json!({ "app": "shop", "policy": "trial" })).await["lease"].clone();
        let failed = json!({ "app": "shop", "policy": "trial", "lease": lease, "outcome": "error" });
        assert_eq!(shop.post("release", &failed).await.0, 200);
    }
    let open = shop.ask(json!({ "app": "shop", "policy": "trial" })).await;
    assert_eq!((&open["code"], &open["reason"]), (&json!(1), &json!("shadow")));
    let both = json!({ "app": "shop", "policy": "login", "also": [{ "policy": "trial" }] });
    assert_eq!([shop.code(both.clone()).await, shop.code(both).await], [1, -1]);
    system.finish().await;
}

/// Each instance's share is taken whole or not at all, and its leases can be given back.
#[tokio::test(flavor = "multi_thread")]
async fn several_policies_and_leases_hold_without_redis() {
    let (system, wire) = wired("REDIS_URL").await;
    let shop = Caller::new(&system, "shop").await;
    let local = |named, algorithm| NewPolicy { when_down: WhenDown::Local, ..policy("shop", named, algorithm) };
    for (named, algorithm) in [("user", a_day(10)), ("address", a_day(2)), ("places", places(1))] {
        set(&system, local(named, algorithm)).await;
    }
    wire.cut();
    let both = json!({ "app": "shop", "policy": "user", "also": [{ "policy": "address" }] });
    let mut codes = Vec::new();
    for _ in 0..10 {
        codes.push(shop.code(both.clone()).await);
    }
    assert_eq!(codes, [1, 1, -1, -1, -1, -1, -1, -1, -1, -1]);
    let left = shop.ask(json!({ "app": "shop", "policy": "user" })).await;
    assert_eq!(left["reason"], "limiter-down");
    assert_eq!(left["remaining"], 7, "refused requests use up nothing");
    let place = json!({ "app": "shop", "policy": "places" });
    let lease = shop.ask(place.clone()).await["lease"].clone();
    assert_eq!(shop.code(place.clone()).await, -1);
    let give = json!({ "app": "shop", "policy": "places", "lease": lease });
    assert_eq!(shop.post("release", &give).await.1, json!({ "released": true }));
    assert_eq!(shop.code(place).await, 1);
    wire.mend();
    system.finish().await;
}

/// Each change of the policy grants one more permit. The callers still in line keep their places and their ids.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_policy_leaves_everybody_at_its_place() {
    const WAITERS: i64 = 6;
    let system = patient(&[]).await;
    let shop = Caller::new(&system, "shop").await;
    let ask = json!({ "app": "shop", "policy": "slow" });
    set(&system, queued(60_000, a_day(1))).await;
    assert_eq!(shop.code(ask.clone()).await, 1);
    let waiting = join_all((0..WAITERS).map(|_| shop.code(ask.clone())));
    let places = async || {
        let lines = keys(&system, ":places:").await;
        let line: Vec<String> =
            redis(&system, &["ZRANGE", lines.first().map_or("none", String::as_str), "0", "-1"]).await;
        line.into_iter().collect::<HashSet<_>>()
    };
    let changing = async {
        in_line(&system, WAITERS).await;
        let at_first = places().await;
        for n in 1..=WAITERS {
            set(&system, queued(60_000, a_day(1 + n))).await;
            in_line(&system, WAITERS - n).await;
            assert!(places().await.is_subset(&at_first), "after {n} changes");
        }
    };
    let (codes, ()) = tokio::join!(waiting, changing);
    assert_eq!(codes, [1; WAITERS as usize]);
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_policy_reaches_those_who_wait() {
    let system = patient(&[]).await;
    let shop = Caller::new(&system, "shop").await;
    let ask = json!({ "app": "shop", "policy": "slow" });
    set(&system, queued(60_000, a_day(1))).await;
    assert_eq!(shop.code(ask.clone()).await, 1);
    let change = async |to: Option<NewPolicy>| {
        set(&system, queued(60_000, a_day(1))).await;
        let changing = async {
            in_line(&system, 1).await;
            match to {
                Some(policy) => set(&system, policy).await,
                None => {
                    let (name, app) = (Name::parse("slow", "name").unwrap(), Name::parse("shop", "app").unwrap());
                    policy_changes::delete(&system.stores.ledger, &name, &[app], "test").await.unwrap();
                }
            }
        };
        let (answer, ()) = tokio::join!(shop.ask(ask.clone()), changing);
        in_line(&system, 0).await;
        answer
    };
    let more = change(Some(queued(60_000, a_day(2)))).await;
    assert_eq!((&more["code"], &more["remaining"]), (&json!(1), &json!(0)), "a higher limit");
    let refused = change(Some(policy("shop", "slow", a_day(1)))).await;
    assert_eq!((&refused["code"], &refused["reason"]), (&json!(-1), &json!("limit")), "no line any more");
    let impatient = change(Some(queued(1, a_day(1)))).await;
    assert_eq!(impatient["code"], -1, "a shorter wait");
    let leases = change(Some(queued(60_000, places(1)))).await;
    assert_eq!((&leases["code"], leases["lease"].is_string()), (&json!(1), true), "another algorithm");
    assert_eq!(change(None).await["code"], 0, "no policy");
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_hangs_up_leaves_the_line() {
    let system = patient(&[]).await;
    let shop = Caller::new(&system, "shop").await;
    set(&system, queued(60_000, places(1))).await;
    let ask = json!({ "app": "shop", "policy": "slow" });
    let lease = shop.ask(ask.clone()).await["lease"].clone();
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let (caller, ask) = (shop.clone(), ask.clone());
            tokio::spawn(async move { caller.code(ask).await })
        })
        .collect();
    in_line(&system, 20).await;
    for caller in waiting {
        caller.abort();
    }
    // The remaining caller gets the place.
    let give = async {
        in_line(&system, 1).await;
        let lease = json!({ "app": "shop", "policy": "slow", "lease": lease });
        assert_eq!(shop.post("release", &lease).await.1, json!({ "released": true }));
    };
    let (code, ()) = tokio::join!(shop.code(ask), give);
    assert_eq!(code, 1);
    system.finish().await;
}

/// Redis grants a place after its caller was told that Redis does not answer. The place comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_granted_too_late_is_given_back() {
    let redis = OwnRedis::start().await;
    let system = System::start_with(&[("REDIS_URL", &redis.url())]).await;
    let shop = Caller::new(&system, "shop").await;
    set(&system, policy("shop", "slow", places(1))).await;
    let ask = json!({ "app": "shop", "policy": "slow" });
    // Redis is stopped until the caller has been told. Then it reads the commands that it was sent.
    let process = redis.info("server", "process_id").await;
    let signal = |name: &str| assert!(Command::new("kill").args([name, process.as_str()]).status().unwrap().success());
    signal("-STOP");
    let late = shop.ask(ask.clone()).await;
    signal("-CONT");
    assert_eq!((&late["code"], &late["reason"]), (&json!(-1), &json!("limiter-down")));
    // Its lease would be valid for ten minutes.
    until(1, || shop.code(ask.clone())).await;
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_sunken_threshold_is_to_be_asked_again() {
    let system = patient(&[("SECKILL_FLOW__ADAPT_INTERVAL_MS", "3600000")]).await;
    let shop = Caller::new(&system, "shop").await;
    let range = Some(Range { floor: 20, ceiling: 100, target_ms: None });
    set(&system, NewPolicy { range, ..policy("shop", "bank", a_day(60)) }).await;
    let ask = |permits: i64| json!({ "app": "shop", "policy": "bank", "permits": permits });
    assert_eq!(shop.code(ask(50)).await, 1);
    system.execute("UPDATE policies SET adapted = 30, version = version + 1").await;
    until(1000, || async {
        let (status, answer, _) = shop.post("acquire", &ask(50)).await;
        assert_eq!((status, &answer["code"]), (200, &json!(-1)), "{answer}");
        answer["retry_after_ms"].clone()
    })
    .await;
    let both = json!({ "app": "shop", "policy": "other", "also": [{ "policy": "bank", "permits": 50 }] });
    set(&system, policy("shop", "other", a_day(5))).await;
    assert_eq!(shop.code(both).await, -1);
    assert_eq!(shop.ask(json!({ "app": "shop", "policy": "other" })).await["remaining"], 4);
    assert_eq!(shop.post("acquire", &ask(101)).await.0, 400, "above the ceiling");
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_is_cleared_only_after_a_quiet_time() {
    let settings = [("SECKILL_ALARMS__CLEAR_AFTER_MS", "3600000")];
    let (system, wire) = wired_with("REDIS_URL", &settings).await;
    wire.cut();
    alarm(&system, "limiter-down redis").await;
    wire.mend();
    // An unreachable receiver raises an alarm too. When that alarm exists, another check has run since.
    system.stores.ledger.receivers.note("shop", Instant::now(), &refused()).await;
    let longer = "UPDATE receivers_away SET since = now() - interval '1 minute'";
    system.execute(longer).await;
    for _ in 0..2 {
        system.execute("DELETE FROM alarms WHERE kind = 'receiver-away'").await;
        alarm(&system, "receiver-away shop").await;
    }
    assert!(open_alarms(&system).await.contains(&"limiter-down redis".to_owned()));
    // More than once: a check that began earlier may see the trouble and report it afterwards.
    let earlier = "UPDATE alarms SET seen_at = seen_at - interval '2 hours' WHERE kind = 'limiter-down'";
    until(["receiver-away shop"], || async {
        system.execute(earlier).await;
        open_alarms(&system).await
    })
    .await;
    system.finish().await;
}

fn refused() -> DeliveryOutcome {
    let why = "connection refused".to_owned();
    DeliveryOutcome::Failed(ReceiverFailure { why, asks_pause: None, may_have_taken_effect: false })
}

/// A connection that fails now and then does not mean that the receiver is away.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_has_answered_since_is_not_away() {
    let system = System::prepare(&[]).await;
    let ledger = &system.stores.ledger;
    let refused = async || ledger.receivers.note("shop", Instant::now(), &refused()).await;
    let later = async || {
        let sql = "UPDATE receivers_away SET since = since - interval '20 s', tried_at = tried_at - interval '20 s'";
        system.execute(sql).await;
    };
    let away = async || ledger.receivers.dead().await.unwrap().len();
    refused().await;
    later().await;
    ledger.receivers.note("shop", Instant::now(), &DeliveryOutcome::Done).await;
    refused().await;
    assert_eq!(away().await, 0, "it has answered between the two");
    later().await;
    refused().await;
    assert_eq!(away().await, 1, "for twenty seconds");
    system.execute("UPDATE receivers_away SET tried_at = tried_at - interval '11 minutes', pauses_until = now() - interval '11 minutes'").await;
    assert_eq!(away().await, 0, "nothing was sent for long");
    // The pause that it asked for has just ended: it is still the same outage.
    system
        .execute("UPDATE receivers_away SET failures = 5, tried_at = now() - interval '1 hour', pauses_until = now()")
        .await;
    refused().await;
    let pauses = ledger.receivers.standing("shop").await.unwrap();
    assert!(matches!(pauses, Standing::Pauses(pause) if pause > Duration::from_secs(5)), "{pauses:?}");
    assert_eq!(away().await, 1);
    system.finish().await;
}

/// Order events without a reachable receiver, and payments without a reachable channel, are recorded.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_cannot_be_reached_raises_an_alarm() {
    let settings = [
        ("SECKILL_SHOP__WEBHOOK_URL", "http://127.0.0.1:1/"),
        ("SECKILL_SHOP__WEBHOOK_SECRETS", crate::orders::order_webhooks::KEYS),
    ];
    let system = System::start_with(&settings).await;
    let sale = system.create_sale(seckill_harness::terms(1)).await;
    assert_eq!(answered(system.buy(&sale, "ann").idempotent("k")).await.code(), "202");
    let longer = "UPDATE receivers_away SET since = now() - interval '1 minute' WHERE receiver = 'shop'";
    until(1, || system.execute(longer)).await;
    alarm(&system, "receiver-away shop").await;
    system.finish().await;
}
