//! Permits over HTTP, and policies that change under load.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use seckill_config::Redis;
use seckill_domain::breaker::BreakerSettings;
use seckill_domain::limiter::{Algorithm, AlgorithmKind, Parameters};
use seckill_domain::policy::{Excess, Name, NewPolicy, WhenDown};
use seckill_flow::permit_request::PermitRequest;
use seckill_flow::permits::Permits;
use seckill_flow::policy_cache::PolicyCache;
use seckill_flow::{FlowError, policy_changes};
use seckill_redis::limiter::Limiter;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::buying::purchase_limits::answered;
use crate::network::broken_network::{wire_to, wired, wired_with};
use seckill_harness::{PATIENCE, System, eventually, http_client, terms, until, wait_until};

/// The limiter's time-out for Redis in tests about other things: longer than a setting may be.
const LIMITER_WAITS_MS: u64 = 20_000;

/// A system with a limiter that answers every call, even when a busy machine delays Redis or the instance for more than a second. A late
/// call would be answered by the policy's `when_down`, and may have cost a permit.
pub async fn patient(settings: &[(&str, &str)]) -> System {
    let mut system = System::prepare(settings).await;
    system.config.flow.timeout_ms = LIMITER_WAITS_MS;
    system.serve(true).await;
    system
}

fn name(text: &str) -> Name {
    Name::parse(text, "name").unwrap()
}

/// `n` permits a day, so that no window ends during a test.
pub fn a_day(n: i64) -> Algorithm {
    Algorithm::new(
        AlgorithmKind::FixedWindow,
        &Parameters { limit: Some(n), window_ms: Some(86_400_000), ..Parameters::default() },
    )
    .unwrap()
}

fn bucket(rate: i64, capacity: i64) -> Algorithm {
    let terms =
        Parameters { rate: Some(rate), capacity: Some(capacity), window_ms: Some(1000), ..Parameters::default() };
    Algorithm::new(AlgorithmKind::TokenBucket, &terms).unwrap()
}

pub fn policy(app: &str, named: &str, algorithm: Algorithm) -> NewPolicy {
    NewPolicy {
        name: name(named),
        apps: vec![name(app)],
        key: String::new(),
        spread: false,
        algorithm,
        range: None,
        excess: Excess::Reject,
        when_down: WhenDown::Closed,
        breaker: None,
    }
}

pub async fn set(system: &System, policy: NewPolicy) {
    eventually(|| async {
        match policy_changes::set(&system.stores.ledger, policy.clone(), "test").await {
            Ok(_) => Ok(()),
            Err(FlowError::Ledger(error)) => Err(error.to_string()),
            Err(wrong) => panic!("{wrong}"),
        }
    })
    .await;
    policies_are_followed(system).await;
}

pub async fn remove(system: &System, app: &str, named: &str) {
    policy_changes::delete(&system.stores.ledger, &name(named), &[name(app)], "test").await.unwrap();
}

async fn app(system: &System, named: &str) -> String {
    let token = policy_changes::create_app(&system.stores.ledger, &name(named), "test").await.unwrap();
    policies_are_followed(system).await;
    token
}

/// Waits until every instance follows the present policies: longer than a change itself waits, which is 3 s.
pub async fn policies_are_followed(system: &System) {
    eventually(|| async {
        let ledger = &system.stores.ledger;
        let version = ledger.policies.policy_version().await.map_err(|e| e.to_string())?;
        let all_follow = ledger.sales.wait_until_followed(version, PATIENCE).await.map_err(|e| e.to_string())?;
        all_follow.then_some(()).ok_or(format!("an instance does not follow version {version}"))
    })
    .await;
}

#[derive(Clone)]
pub struct Caller {
    pub token: String,
    pub at: SocketAddr,
    http: reqwest::Client,
}

impl Caller {
    pub async fn new(system: &System, named: &str) -> Self {
        Self::at(system, named, system.instances[0].address).await
    }

    pub async fn at(system: &System, named: &str, at: SocketAddr) -> Self {
        Self::of(app(system, named).await, at)
    }

    pub fn of(token: String, at: SocketAddr) -> Self {
        Self { token, at, http: http_client() }
    }

    pub async fn post(&self, call: &str, body: &Value) -> (u16, Value, reqwest::header::HeaderMap) {
        let url = format!("http://{}/api/v1/flow/{call}", self.at);
        let answer = self.http.post(url).bearer_auth(&self.token).json(body).send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        (status, answer.json().await.unwrap(), headers)
    }

    pub async fn ask(&self, body: Value) -> Value {
        let (status, answer, _) = self.post("acquire", &body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub async fn code(&self, body: Value) -> i64 {
        self.ask(body).await["code"].as_i64().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_is_granted_refused_or_has_no_such_policy() {
    let system = System::shared().await;
    let shop = Caller::new(&system, "granted-shop").await;
    set(&system, policy("granted-shop", "login", a_day(3))).await;
    let (status, first, headers) = shop.post("acquire", &json!({ "app": "granted-shop", "policy": "login" })).await;
    assert_eq!((status, &first["code"], &first["remaining"]), (200, &json!(1), &json!(2)));
    assert_eq!(headers["ratelimit-policy"], "\"login\";q=3;w=86400");
    assert!(headers["ratelimit"].to_str().unwrap().starts_with("\"login\";r=2;t="), "{headers:?}");
    assert_eq!(shop.code(json!({ "app": "granted-shop", "policy": "login", "permits": 3 })).await, -1, "a refusal");
    assert_eq!(shop.code(json!({ "app": "granted-shop", "policy": "login", "permits": 2 })).await, 1);
    let (_, refused, headers) = shop.post("acquire", &json!({ "app": "granted-shop", "policy": "login" })).await;
    assert_eq!((&refused["code"], &refused["remaining"], &refused["policy"]), (&json!(-1), &json!(0), &json!("login")));
    assert!(refused["retry_after_ms"].as_u64().unwrap() > 0 && headers.contains_key("retry-after"));
    // Each key has its own permits. An unknown policy, or another application's, is not configured.
    assert_eq!(shop.code(json!({ "app": "granted-shop", "policy": "login", "key": "ann" })).await, 1);
    assert_eq!(shop.code(json!({ "app": "granted-shop", "policy": "log" })).await, 0);
    let other = Caller::new(&system, "granted-shop-2").await;
    assert_eq!(other.code(json!({ "app": "granted-shop-2", "policy": "login" })).await, 0);
    // An application cannot ask for another one, or for an invalid number of permits.
    assert_eq!(other.post("acquire", &json!({ "app": "granted-shop", "policy": "login" })).await.0, 403);
    for bad in [json!(0), json!(-1), json!(4), json!(1.5), json!("1e3"), json!(i64::MAX)] {
        let (status, answer, _) =
            shop.post("acquire", &json!({ "app": "granted-shop", "policy": "login", "permits": bad })).await;
        assert_eq!((status, &answer["code"]), (400, &json!("invalid-request")), "{bad}");
    }
    let stranger = Caller { token: "0".repeat(64), ..Caller::new(&system, "granted-shop-3").await };
    assert_eq!(stranger.post("acquire", &json!({ "app": "granted-shop-3", "policy": "login" })).await.0, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn minus_one_is_unlimited_and_policies_that_grant_nothing_are_refused() {
    let system = System::shared().await;
    let shop = Caller::new(&system, "unlimited-shop").await;
    set(&system, policy("unlimited-shop", "free", a_day(-1))).await;
    let answer = shop.ask(json!({ "app": "unlimited-shop", "policy": "free", "permits": 1_000_000 })).await;
    assert_eq!((&answer["code"], &answer["remaining"]), (&json!(1), &json!(-1)));
    // A14: no limit that refuses everything, or nothing, by mistake.
    for limit in [0, -2, i64::MIN, i64::MAX] {
        let terms = Parameters { limit: Some(limit), window_ms: Some(1000), ..Parameters::default() };
        assert!(Algorithm::new(AlgorithmKind::FixedWindow, &terms).is_err(), "{limit}");
    }
    let house = NewPolicy { excess: Excess::Shadow, ..policy("seckill", "purchase-buyer", a_day(5)) };
    assert!(matches!(policy_changes::set(&system.stores.ledger, house, "test").await, Err(FlowError::Policy(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_excess_is_queued_degraded_or_only_counted() {
    let system = System::shared().await;
    let shop = Caller::new(&system, "excess-shop").await;
    let queue = Excess::parse("queue:60000").unwrap();
    set(&system, NewPolicy { excess: queue, ..policy("excess-shop", "slow", bucket(20, 1)) }).await;
    set(
        &system,
        NewPolicy {
            excess: Excess::parse(r#"degrade:{"page":"later"}"#).unwrap(),
            ..policy("excess-shop", "page", a_day(1))
        },
    )
    .await;
    set(&system, NewPolicy { excess: Excess::Shadow, ..policy("excess-shop", "trial", a_day(1)) }).await;

    // Ten callers more than the bucket holds: they wait, and one is served every 50 ms.
    let began = Instant::now();
    let answers = join_all((0..11).map(|_| shop.code(json!({ "app": "excess-shop", "policy": "slow" })))).await;
    assert!(answers.iter().all(|code| *code == 1), "{answers:?}");
    assert!(began.elapsed() >= Duration::from_millis(490), "{:?}", began.elapsed());

    assert_eq!(shop.code(json!({ "app": "excess-shop", "policy": "page" })).await, 1);
    let answer = shop.ask(json!({ "app": "excess-shop", "policy": "page" })).await;
    assert_eq!((&answer["code"], &answer["answer"]["page"]), (&json!(-1), &json!("later")));

    assert_eq!(shop.code(json!({ "app": "excess-shop", "policy": "trial" })).await, 1);
    let answer = shop.ask(json!({ "app": "excess-shop", "policy": "trial" })).await;
    assert_eq!((&answer["code"], &answer["reason"]), (&json!(1), &json!("shadow")));
}

/// A caller who goes away while shadow policies are counted takes no permit: nobody could give it back.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_goes_in_the_middle_takes_no_permit_with_him() {
    let mut system = System::shared().await;
    system.config.flow.timeout_ms = LIMITER_WAITS_MS;
    app(&system, "leaving-shop").await;
    let one = Parameters { limit: Some(1), lease_ms: Some(3_600_000), ..Parameters::default() };
    set(&system, policy("leaving-shop", "calls", Algorithm::new(AlgorithmKind::Concurrency, &one).unwrap())).await;
    set(&system, NewPolicy { excess: Excess::Shadow, ..policy("leaving-shop", "trial", a_day(1_000_000)) }).await;

    let (wire, url) = wire_to(&system.environment["REDIS_URL"]).await;
    let redis = Redis { url, ..system.config.redis.clone() };
    let policies = PolicyCache::load(system.stores.ledger.policies.clone(), Uuid::new_v4(), 100).await.unwrap();
    let limiter = Limiter::new(&redis, &system.config.flow).unwrap();
    let permits = &Permits::new(Arc::new(policies), limiter, 10);
    let request = |policy: &str, key: &str| PermitRequest::new(policy, key.to_owned(), None).unwrap();
    let ask = |key: String| async move {
        permits.acquire(&name("leaving-shop"), &[request("calls", &key), request("trial", &key)]).await.unwrap()
    };
    assert_eq!(ask("before".to_owned()).await.code, 1);
    wire.delay(Duration::from_millis(20));
    // Each policy's call to Redis takes 40 ms.
    for ms in (0..100).step_by(5) {
        let key = format!("after {ms} ms");
        let answer = tokio::time::timeout(Duration::from_millis(ms), ask(key.clone())).await;
        if let Some(lease) = answer.ok().and_then(|answer| answer.lease) {
            permits.release(&name("leaving-shop"), &request("calls", &key), lease, None, None).await.unwrap();
        }
        until(1, || async { ask(key.clone()).await.code }).await;
    }
}

/// F22: every instance follows a change within a second, no count restarts, and every request meets a policy.
#[tokio::test(flavor = "multi_thread")]
async fn every_instance_follows_a_changed_policy_and_keeps_its_counts() {
    let mut system = patient(&[]).await;
    system.serve(false).await;
    let mut shop = Caller::new(&system, "shop").await;
    set(&system, policy("shop", "login", a_day(50))).await;
    let ask = json!({ "app": "shop", "policy": "login" });
    for n in 0..50 {
        shop.at = system.instances[n % 2].address;
        assert_eq!(shop.code(ask.clone()).await, 1);
    }
    assert_eq!(shop.code(ask.clone()).await, -1);
    let all_changed = AtomicBool::new(false);
    // During repeated changes of the policy, each answer is the old policy's or the new one's.
    let changing = async {
        for limit in 51..=60 {
            set(&system, policy("shop", "login", a_day(limit))).await;
        }
        all_changed.store(true, Ordering::SeqCst);
    };
    let asking = async {
        let mut granted = 0;
        loop {
            let changed = all_changed.load(Ordering::SeqCst);
            let answer = shop.ask(ask.clone()).await;
            assert_ne!(answer["code"], 0, "a request without a policy");
            granted += i64::from(answer["code"] == 1);
            if answer["code"] == -1 {
                assert_eq!(answer["reason"], "limit");
                if changed {
                    break granted;
                }
            }
        }
    };
    let (granted, ()) = tokio::join!(asking, changing);
    assert_eq!(granted, 10, "one more for each of ten changes");
    // A limit below the used count refuses immediately, at both instances.
    set(&system, policy("shop", "login", a_day(5))).await;
    for instance in &system.instances {
        shop.at = instance.address;
        assert_eq!(shop.code(ask.clone()).await, -1);
    }
    // Each limit, from 50 to 60 and then 5. A change with a lost answer has been repeated.
    let log = "SELECT count(DISTINCT details->'after'->>'limit') FROM audit_log WHERE action = 'policy set'";
    let log = system.number(log).await;
    assert_eq!(log, 12);
    // Without notices, the poll finds the change.
    system.execute("ALTER TABLE policies DISABLE TRIGGER policies_change").await;
    system.execute("UPDATE policies SET max_permits = 100, version = version + 1").await;
    system.execute("UPDATE policy_version SET version = version + 1").await;
    until(1, || shop.code(ask.clone())).await;
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_limit_purchases() {
    let system = System::start().await;
    let sale = system.create_sale(terms(50)).await;
    set(&system, policy("seckill", "purchase-buyer", a_day(2))).await;
    let codes = |n: usize| {
        let (system, sale) = (&system, &sale);
        async move {
            let mut codes = Vec::new();
            for _ in 0..n {
                codes.push(answered(system.buy(sale, "ann")).await.code());
            }
            codes
        }
    };
    assert_eq!(codes(3).await, ["202", "409 already-purchased", "429 quota-exceeded"]);
    // A higher limit continues from the present count. A window of another width keeps the count.
    set(&system, policy("seckill", "purchase-buyer", a_day(3))).await;
    assert_eq!(codes(2).await, ["409 already-purchased", "429 quota-exceeded"]);
    let hours = Parameters { limit: Some(4), window_ms: Some(43_200_000), ..Parameters::default() };
    set(&system, policy("seckill", "purchase-buyer", Algorithm::new(AlgorithmKind::FixedWindow, &hours).unwrap()))
        .await;
    assert_eq!(codes(2).await, ["409 already-purchased", "429 quota-exceeded"]);
    // Without a policy, the limit of the configuration applies.
    remove(&system, "seckill", "purchase-buyer").await;
    let policy = || async { system.buy(&sale, "ben").send().await.headers.get("ratelimit-policy").cloned() };
    wait_until(policy, |policy| policy.as_ref().is_some_and(|policy| policy == "\"buyer\";q=5;w=60")).await;
    system.settled(&sale).await;
    system.finish().await;
}

/// A16: a caller that ignores a 429 is refused without a call to Redis.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_ignores_a_refusal_is_refused_from_memory() {
    let (system, wire) = wired("REDIS_URL").await;
    let sale = system.create_sale(terms(50)).await;
    let shop = Caller::new(&system, "shop").await;
    set(&system, policy("shop", "login", a_day(1))).await;
    set(&system, policy("seckill", "purchase-buyer", a_day(1))).await;
    let ask = json!({ "app": "shop", "policy": "login", "key": "ann" });
    // When Redis answered too late, the permit is still used up, and the next refusal is the limit's.
    wait_until(|| shop.ask(ask.clone()), |answer| answer["code"] == -1 && answer["reason"] == "limit").await;
    // Each worker thread has its own cache: repeated until all know the buyer.
    eventually(|| async {
        wire.mend();
        for _ in 0..4 {
            _ = system.buy(&sale, "ann").send().await;
        }
        wire.cut();
        for _ in 0..8 {
            let code = system.buy(&sale, "ann").send().await.code();
            if code != "429 quota-exceeded" {
                return Err(code);
            }
        }
        Ok(())
    })
    .await;
    let answer = shop.ask(ask).await;
    assert_eq!((&answer["code"], &answer["reason"]), (&json!(-1), &json!("limit")), "refused from memory");
    wire.mend();
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_each_policy_answers_as_its_when_down_says() {
    let (mut system, wire) = wired("REDIS_URL").await;
    system.serve(false).await;
    let alive = "SELECT count(*) FROM instances WHERE seen_at > now() - interval '5 seconds'";
    until(2, || system.number(alive)).await;
    let shop = Caller::new(&system, "shop").await;
    for (named, when_down) in [("c", WhenDown::Closed), ("o", WhenDown::Open), ("l", WhenDown::Local)] {
        set(&system, NewPolicy { when_down, ..policy("shop", named, a_day(7)) }).await;
    }
    // Redis may have answered one call too late on a busy machine; each call has its own key.
    until(1, || shop.code(json!({ "app": "shop", "policy": "c", "key": Uuid::new_v4().to_string() }))).await;
    wire.cut();
    let mut took = Vec::new();
    for _ in 0..20 {
        let began = Instant::now();
        let closed = shop.ask(json!({ "app": "shop", "policy": "c" })).await;
        assert_eq!((&closed["code"], &closed["reason"]), (&json!(-1), &json!("limiter-down")));
        took.push(began.elapsed());
        let began = Instant::now();
        assert_eq!(shop.code(json!({ "app": "shop", "policy": "o" })).await, 1);
        took.push(began.elapsed());
    }
    most_are_not_asked(&system, took);
    // Two instances share seven: four and three. An instance that is too busy looks dead, and is left out until its next report. Each round
    // has its own key, and so its own share.
    eventually(|| async {
        let (mut granted, key) = (Vec::new(), Uuid::new_v4().to_string());
        for instance in &system.instances {
            let here = Caller { at: instance.address, ..shop.clone() };
            let ask = json!({ "app": "shop", "policy": "l", "key": key });
            let mut permits = 0;
            for _ in 0..20 {
                permits += i64::from(here.code(ask.clone()).await == 1);
            }
            granted.push(permits);
        }
        granted.sort_unstable();
        (granted == [3, 4]).then_some(()).ok_or(format!("{granted:?}"))
    })
    .await;
    wire.mend();
    until(1, || shop.code(json!({ "app": "shop", "policy": "c", "key": "later" }))).await;
    system.finish().await;
}

/// The breaker in front of a silent Redis lets few calls through: most callers do not wait for the time-out.
fn most_are_not_asked(system: &System, mut took: Vec<Duration>) {
    took.sort_unstable();
    let median = took[took.len() / 2];
    assert!(median < Duration::from_millis(system.config.flow.timeout_ms), "most callers wait: {median:?}");
}

/// F20: packets to the limiter's Redis are dropped, and no caller waits longer than the time-out.
#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_that_swallows_packets_costs_at_most_the_time_out() {
    let (system, wire) = wired_with("REDIS_URL", &[("SECKILL_FLOW__TIMEOUT_MS", "1000")]).await;
    let shop = Caller::new(&system, "shop").await;
    let ways = [("c", WhenDown::Closed, -1), ("o", WhenDown::Open, 1)];
    for (named, when_down, _) in ways {
        set(&system, NewPolicy { when_down, ..policy("shop", named, a_day(1_000)) }).await;
    }
    assert_eq!(shop.code(json!({ "app": "shop", "policy": "o" })).await, 1);
    wire.swallow();
    let mut took = Vec::new();
    for n in 0..300 {
        let (named, _, code) = ways[n % 2];
        let began = Instant::now();
        assert_eq!(shop.code(json!({ "app": "shop", "policy": named })).await, code);
        took.push(began.elapsed());
    }
    // Each call was answered, so the wait has a bound: nothing comes over the wire. The bound is the limiter's time-out, and not the far
    // longer one of other commands.
    let longest = took.iter().max().unwrap();
    let bound = Duration::from_millis(system.config.redis.response_timeout_ms);
    assert!(*longest < bound, "{longest:?}, and the time-out of other commands is {bound:?}");
    most_are_not_asked(&system, took);
    wire.mend();
    until(1, || shop.code(json!({ "app": "shop", "policy": "c" }))).await;
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_given_back_and_reports_open_breakers() {
    let system = System::shared().await;
    let shop = Caller::new(&system, "leasing-shop").await;
    let places = Parameters { limit: Some(2), lease_ms: Some(60_000), ..Parameters::default() };
    set(&system, policy("leasing-shop", "places", Algorithm::new(AlgorithmKind::Concurrency, &places).unwrap())).await;
    let ask = json!({ "app": "leasing-shop", "policy": "places", "key": "k" });
    let first = shop.ask(ask.clone()).await;
    assert_eq!([shop.code(ask.clone()).await, shop.code(ask.clone()).await], [1, -1]);
    let give = json!({ "app": "leasing-shop", "policy": "places", "key": "k", "lease": first["lease"] });
    assert_eq!(shop.post("release", &give).await.1, json!({ "released": true }));
    assert_eq!(shop.post("release", &give).await.1, json!({ "released": false }));
    assert_eq!([shop.code(ask.clone()).await, shop.code(ask.clone()).await], [1, -1]);

    let open_for = async |open_ms: u64| {
        // No call of a slow machine counts as slow, and all of them count together.
        let an_hour = BreakerSettings { slow_ms: 3_600_000, window_ms: 3_600_000, ..BreakerSettings::default() };
        let breaker = BreakerSettings { min_calls: 4, open_ms, probes: 1, ..an_hour };
        set(&system, NewPolicy { breaker: Some(breaker), ..policy("leasing-shop", "bank", a_day(1000)) }).await;
    };
    let call = |outcome: &'static str| {
        let shop = &shop;
        async move {
            let answer = shop.ask(json!({ "app": "leasing-shop", "policy": "bank" })).await;
            if answer["code"] == 1 {
                let give =
                    json!({ "app": "leasing-shop", "policy": "bank", "lease": answer["lease"], "outcome": outcome });
                assert_eq!(shop.post("release", &give).await.0, 200);
            }
            answer
        }
    };
    let reports = async || {
        for outcome in ["ok", "ok", "error", "error"] {
            assert_eq!(call(outcome).await["code"], 1);
        }
    };
    open_for(3_600_000).await;
    reports().await;
    let open = call("ok").await;
    assert_eq!((&open["code"], &open["reason"]), (&json!(-1), &json!("breaker")));
    // With other terms the breaker starts closed. The same reports open it again, for a moment.
    open_for(1000).await;
    reports().await;
    until(1, || async { call("ok").await["code"].clone() }).await;
    assert_eq!(call("ok").await["code"], 1, "the successful probe closed the breaker");
}
