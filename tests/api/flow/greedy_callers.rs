//! One caller asks for all it can get. Another application, a buyer and an administrator are not affected.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use seckill_domain::account::AccountRole;
use seckill_domain::limiter::{Algorithm, AlgorithmKind, Parameters};
use seckill_domain::policy::{Excess, NewPolicy};
use seckill_harness::{Sale, System, terms, until};
use serde_json::{Value, json};

use crate::backoffice::admin_api::{PASSWORD, account};
use crate::backoffice::sign_in_limits::{WRONG, attempt, device};
use crate::flow::permits_and_policies::{Caller, a_day, policy, set};
use crate::redis::own_redis::OwnRedis;

/// The budget of an application in these tests.
const BUDGET: i64 = 1_000_000;
/// The most additional policies of one call.
const ALSO: usize = 8;

/// A system on a private Redis: an application that asks for more and more, and others who must not be affected.
struct Shared {
    redis: OwnRedis,
    system: System,
    sale: Sale,
    greedy: Caller,
    other: Caller,
    /// The cookie of the administrator's browser.
    browser: String,
}

impl Shared {
    async fn start() -> Self {
        let redis = OwnRedis::start().await;
        let url = redis.url();
        let settings = [
            ("REDIS_URL", url.as_str()),
            ("SECKILL_FLOW__APP_KEYS_MB", "1"),
            // One connection is for strangers.
            ("SECKILL_DATABASE__MAX_CONNECTIONS", "10"),
            ("SECKILL_ADMIN__LOGIN_LIMIT", "100"),
        ];
        let system = System::start_with(&settings).await;
        for kind in [AlgorithmKind::FixedWindow, AlgorithmKind::SlidingLog] {
            let given = Parameters { limit: Some(10_000), window_ms: Some(86_400_000), ..Parameters::default() };
            set(&system, policy("greedy", kind.as_str(), Algorithm::new(kind, &given).unwrap())).await;
        }
        let given = Parameters { limit: Some(10), window_ms: Some(100), ..Parameters::default() };
        let few = policy("greedy", "line", Algorithm::new(AlgorithmKind::SlidingLog, &given).unwrap());
        set(&system, NewPolicy { excess: Excess::parse("queue:60000").unwrap(), ..few }).await;
        set(&system, policy("other", "calm", a_day(1_000_000))).await;
        let (greedy, other) = (Caller::new(&system, "greedy").await, Caller::new(&system, "other").await);
        account(&system, "known", AccountRole::Admin).await;
        let browser = device(&attempt(&system, "known", PASSWORD, "10.3.0.1", None).await);
        let sale = system.create_sale(terms(1_000)).await;
        Self { redis, system, sale, greedy, other, browser }
    }

    async fn used(&self) -> i64 {
        self.redis.info("memory", "used_memory").await.trim().parse().unwrap()
    }

    async fn ask_for_new_keys(&self, policy: &str, turn: usize) -> Value {
        let key = |n: usize| format!("{turn}-{n}-{}", "\u{1F600}".repeat(100));
        let also: Vec<Value> = (1..=ALSO).map(|n| json!({ "policy": policy, "key": key(n) })).collect();
        self.greedy.ask(json!({ "app": "greedy", "policy": policy, "key": key(0), "also": also })).await
    }

    /// All these callers continue while others are served, several times.
    async fn others_are_served_beside(&self, callers: impl Iterator<Item = impl Future<Output = ()>>) {
        let served = async {
            for turn in 0..6 {
                self.others_are_served(turn).await;
            }
        };
        tokio::select! {
            _ = join_all(callers) => panic!("they go on for ever"),
            () = served => {}
        }
    }

    async fn finish(self) {
        self.system.settled(&self.sale).await;
        self.system.finish().await;
    }

    /// Another application, a buyer and an administrator are served.
    async fn others_are_served(&self, turn: usize) {
        let answer = self.other.ask(json!({ "app": "other", "policy": "calm", "key": "k" })).await;
        assert_eq!(answer["code"], 1, "turn {turn}: {answer}");
        let answer = self.system.buy(&self.sale, &format!("buyer-{turn}")).idempotent("k").send().await;
        assert_eq!(answer.status, 202, "turn {turn}: {}", answer.body);
        let answer = attempt(&self.system, "known", PASSWORD, "10.3.0.1", Some(&self.browser)).await;
        assert_eq!(answer.status, 200, "turn {turn}: {:?}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_fills_its_budget_and_nobody_else_notices() {
    let shared = Shared::start().await;
    shared.others_are_served(0).await;
    for (kind, turns) in [("fixed-window", 1_000), ("sliding-log", 1_000)] {
        let before = shared.used().await;
        let mut refused = 0;
        for turn in 1..=turns {
            if turn % 200 == 0 {
                shared.others_are_served(turn).await;
            }
            let answer = shared.ask_for_new_keys(kind, turn).await;
            match answer["reason"].as_str() {
                None => assert_eq!((answer["code"].as_i64(), refused), (Some(1), 0), "{answer}"),
                reason => {
                    assert_eq!((reason, &answer["code"]), (Some("too-many-keys"), &json!(-1)), "{answer}");
                    assert!(answer["retry_after_ms"].as_i64().unwrap() >= 1_000, "{answer}");
                    refused += 1;
                }
            }
            if refused > 20 {
                break;
            }
        }
        assert!(refused > 20, "{kind}: {turns} calls found room");
        let grown = shared.used().await - before;
        // Besides the keys, Redis keeps its hash tables, and the keys of other callers.
        assert!(grown < 2 * BUDGET, "{kind}: Redis has grown by {grown} bytes");
    }
    // Existing keys still count. A new key is refused.
    let known = format!("1-0-{}", "\u{1F600}".repeat(100));
    let ask = |policy| shared.greedy.ask(json!({ "app": "greedy", "policy": policy, "key": &known }));
    assert_eq!(ask("fixed-window").await["code"], 1);
    assert_eq!(ask("sliding-log").await["reason"], "too-many-keys");
    shared.others_are_served(2_000).await;
    shared.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_memory_is_scarce_sales_have_what_is_left() {
    let shared = Shared::start().await;
    let level = async |wanted: &str| {
        until((json!(wanted), json!(true)), || async {
            let (_, ready) = shared.system.get("/readyz", None).await;
            (ready["redis_memory"].clone(), ready["ready"].clone())
        })
        .await;
    };
    shared.others_are_served(0).await;
    level("ample").await;
    let limit_to = async |percent: i64| {
        let most = shared.used().await * 100 / percent;
        shared.redis.query(&["CONFIG", "SET", "maxmemory", &most.to_string()]).await.unwrap();
    };
    limit_to(80).await;
    level("low").await;
    assert_eq!(shared.ask_for_new_keys("fixed-window", 1).await["code"], 1);
    limit_to(90).await;
    level("scarce").await;
    assert_eq!(shared.ask_for_new_keys("fixed-window", 2).await["reason"], "too-many-keys");
    assert_eq!(attempt(&shared.system, "known", PASSWORD, "10.99.0.1", None).await.status, 503, "from nowhere");
    shared.others_are_served(1).await;
    let buyers = (0..50).map(|n| {
        let shared = &shared;
        async move { shared.system.buy(&shared.sale, &format!("late-{n}")).idempotent("k").send().await.status }
    });
    assert!(join_all(buyers).await.iter().all(|status| *status == 202));
    shared.redis.query(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    level("ample").await;
    assert_eq!(shared.ask_for_new_keys("fixed-window", 3).await["code"], 1);
    shared.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_greatest_calls_disturb_nobody() {
    let shared = Shared::start().await;
    let greedy = (0..4).map(|caller| {
        let shared = &shared;
        async move {
            loop {
                let place =
                    |n: usize| json!({ "policy": "sliding-log", "key": format!("{caller}-{n}"), "permits": 10_000 });
                let mut ask = json!({ "app": "greedy", "also": (1..=ALSO).map(place).collect::<Vec<_>>() });
                ask.as_object_mut().unwrap().extend(place(0).as_object().unwrap().clone());
                shared.greedy.ask(ask).await;
            }
        }
    });
    shared.others_are_served_beside(greedy).await;
    shared.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_in_line_disturbs_nobody() {
    let shared = Shared::start().await;
    let crowd = (0..300).map(|_| {
        let shared = &shared;
        async move {
            loop {
                shared.greedy.ask(json!({ "app": "greedy", "policy": "line", "key": "k" })).await;
            }
        }
    });
    shared.others_are_served_beside(crowd).await;
    shared.finish().await;
}

/// Strangers from many addresses keep the strangers' line full.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_keep_no_known_browser_waiting() {
    let shared = Shared::start().await;
    let shed = AtomicUsize::new(0);
    let strangers = (0..60).map(|stranger| {
        let (shared, shed) = (&shared, &shed);
        async move {
            for turn in 0.. {
                let from = format!("2001:db8:{stranger:x}:{turn:x}::1");
                let answer = attempt(&shared.system, &format!("guess-{stranger}-{turn}"), WRONG, &from, None).await;
                shed.fetch_add(usize::from(answer.status == 503), Ordering::Relaxed);
            }
        }
    });
    let full = until(true, || async { shed.load(Ordering::Relaxed) > 50 });
    let mut strangers = Box::pin(join_all(strangers));
    tokio::select! {
        _ = &mut strangers => panic!("they go on for ever"),
        () = full => {}
    }
    shared.others_are_served_beside([async { drop(strangers.await) }].into_iter()).await;
    shared.finish().await;
}
