//! Challenges and their passes (protocol, rule 18; A1 and A15).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use futures_util::future::join_all;
use reqwest::Client;
use seckill_captcha::work;
use seckill_domain::captcha::CaptchaKind;
use seckill_domain::ids::Units;
use seckill_domain::sale::NewSale;
use seckill_harness::{Answer, Click, Sale, System, eventually, terms, until};
use serde_json::{Value, json};

use crate::backoffice::admin_sessions::seckill;
use crate::buying::purchase_limits::{accepted_at_once, answered};
use crate::network::service_killed::{allow_commits, hold_without_commit, refuse_commits};
use crate::redis::own_redis::OwnRedis;

/// Little work, and no limits but the tests' own.
pub const EASY: [(&str, &str); 5] = [
    ("SECKILL_CAPTCHA__WORK_BITS_MIN", "8"),
    ("SECKILL_CAPTCHA__WORK_BITS_MAX", "8"),
    ("SECKILL_CAPTCHA__BUYER_LIMIT", "100000"),
    ("SECKILL_PURCHASE__BUYER_LIMIT", "-1"),
    ("SECKILL_PURCHASE__ADDRESS_LIMIT", "-1"),
];

pub fn guarded(captcha: CaptchaKind, stock: i64, per_user: u64) -> NewSale {
    NewSale { captcha, per_user: Units::parse(per_user).unwrap(), ..terms(stock) }
}

/// The user who asks, the system, and the client's address.
pub struct Caller<'a> {
    system: &'a System,
    at: SocketAddr,
    user: &'a str,
    from: &'a str,
}

impl<'a> Caller<'a> {
    pub fn new(system: &'a System, user: &'a str) -> Self {
        Self { system, at: system.instances[0].address, user, from: "10.5.0.1" }
    }

    async fn post(&self, sale: &str, what: &str, body: &Value) -> Answer {
        let request = Client::new().post(format!("http://{}/api/v1/sales/{sale}/{what}", self.at));
        let request = request.bearer_auth(self.system.token(self.user, 0)).header("x-forwarded-for", self.from);
        Answer::of(request.json(body).send().await.unwrap()).await
    }

    async fn ask(&self, sale: &Sale, wish: Value) -> Answer {
        self.post(&sale.id.to_string(), "challenges", &wish).await
    }

    /// Asks for a challenge, and repeats while none is drawn.
    async fn ask_drawn(&self, sale: &Sale, wish: Value) -> Answer {
        eventually(|| async {
            let answer = self.ask(sale, wish.clone()).await;
            if answer.status == 503 { Err(answer.code()) } else { Ok(answer) }
        })
        .await
    }

    /// Asks for a challenge, and repeats until one is drawn.
    async fn challenge(&self, sale: &Sale, wish: Value) -> Value {
        eventually(|| async {
            let answer = self.ask(sale, wish.clone()).await;
            if answer.status == 201 { Ok(answer.body) } else { Err(answer.code()) }
        })
        .await
    }

    async fn answer(&self, sale: &Sale, challenge: &Value, answer: &Value) -> Answer {
        let body = json!({ "challenge_id": challenge["challenge_id"], "answer": answer });
        self.post(&sale.id.to_string(), "passes", &body).await
    }

    /// A pass of this sale, by the wished kind of challenge.
    pub async fn pass(&self, sale: &Sale, wish: Value) -> String {
        let challenge = self.challenge(sale, wish).await;
        let earned = self.answer(sale, &challenge, &right_answer(&challenge)).await;
        assert_eq!(earned.code(), "201", "{challenge}");
        earned.body["pass"].as_str().unwrap().to_owned()
    }
}

/// The solution of a challenge: the answer that a debug build shows, or the work itself.
pub fn right_answer(challenge: &Value) -> Value {
    match challenge["kind"].as_str().unwrap() {
        "work" => {
            let (prefix, difficulty) =
                (challenge["prefix"].as_str().unwrap(), challenge["difficulty"].as_u64().unwrap());
            json!({ "nonce": work::solve(prefix, u32::try_from(difficulty).unwrap()).unwrap() })
        }
        _ => challenge["answer_for_tests"].clone(),
    }
}

/// A solved challenge of a sale that asks for work: the body of `POST passes`.
pub async fn solved(system: &System, sale: &Sale, user: &str) -> Value {
    let challenge = Caller::new(system, user).challenge(sale, json!({})).await;
    json!({ "challenge_id": challenge["challenge_id"], "answer": right_answer(&challenge) })
}

fn buy<'a>(system: &'a System, sale: &'a Sale, user: &'a str, pass: &str) -> Click<'a> {
    system.buy(sale, user).body(json!({ "key": sale.key, "pass": pass }))
}

fn counted(answers: &[Answer]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for answer in answers {
        *counts.entry(answer.code()).or_default() += 1;
    }
    counts
}

const INVALID: &str = "403 pass-invalid";
const FAILED: &str = "403 challenge-failed";

/// Each kind, from the question to the order. The ticket is checked before the pass, so a repeat needs no pass.
#[tokio::test(flavor = "multi_thread")]
async fn each_kind_is_solved_and_its_pass_buys_once() {
    let system = System::shared_with(&EASY).await;
    for (captcha, wish, kind, fields) in [
        (CaptchaKind::Image, json!({}), "image", "height image length width"),
        (CaptchaKind::Slider, json!({ "kind": null }), "slider", "height image piece piece_size piece_y width"),
        (CaptchaKind::Work, json!({ "kind": "work" }), "work", "difficulty prefix"),
        (CaptchaKind::Image, json!({ "kind": "work" }), "work", "difficulty prefix"),
        (CaptchaKind::Slider, json!({ "kind": "work" }), "work", "difficulty prefix"),
    ] {
        let sale = system.create_sale(guarded(captcha, 10, 3)).await;
        assert_eq!(system.get(&format!("/api/v1/sales/{}", sale.id), None).await.1["captcha"], captcha.as_str());
        let ann = Caller::new(&system, "ann");
        assert_eq!(system.buy(&sale, "ann").send().await.code(), INVALID, "{kind}: without a pass");

        let challenge = ann.challenge(&sale, wish.clone()).await;
        assert_eq!(challenge["kind"], kind);
        let common = ["answer_for_tests", "challenge_id", "expires_at_ms", "kind"];
        let names = challenge.as_object().unwrap().keys().map(String::as_str);
        let mut own: Vec<&str> = names.filter(|name| !common.contains(name)).collect();
        own.sort_unstable();
        assert_eq!(own.join(" "), fields);
        let earned = ann.answer(&sale, &challenge, &right_answer(&challenge)).await;
        assert_eq!(earned.code(), "201", "{kind}");
        let pass = earned.body["pass"].as_str().unwrap();

        let bought = buy(&system, &sale, "ann", pass).idempotent("k").send().await;
        assert_eq!(bought.code(), "202", "{kind}");
        let spent = buy(&system, &sale, "ann", pass).idempotent("another").send().await;
        assert_eq!(spent.code(), INVALID, "{kind}: spent");
        // The ticket is checked first.
        for repeat in [buy(&system, &sale, "ann", pass), buy(&system, &sale, "ann", ""), system.buy(&sale, "ann")] {
            let repeat = repeat.idempotent("k").send().await;
            assert_eq!((repeat.code(), repeat.order_id()), ("202".into(), bought.order_id()));
        }
        // Another pass buys another unit.
        let another = ann.pass(&sale, wish).await;
        assert_eq!(buy(&system, &sale, "ann", &another).send().await.code(), "202");
        system.settled(&sale).await;
        assert_eq!((system.stock(&sale).await, system.available(&sale).await), (8, Some(8)));
    }
}

/// A wrong answer consumes the challenge, as a right one does.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_answer_uses_the_challenge_up() {
    let system = System::shared_with(&EASY).await;
    for captcha in [CaptchaKind::Image, CaptchaKind::Slider, CaptchaKind::Work] {
        let sale = system.create_sale(guarded(captcha, 5, 1)).await;
        let ann = Caller::new(&system, "ann");
        // No picture shows a Q.
        let drag = json!({ "x": 5, "trail": [[0, 0, 0], [400, 5, 0]] });
        for wrong in [json!("QQQQQ"), json!(""), json!({ "nonce": "9" }), drag] {
            let challenge = ann.challenge(&sale, json!({})).await;
            let right = right_answer(&challenge);
            if challenge["prefix"].as_str().is_some_and(|prefix| work::judge(prefix, "9", 8)) {
                continue;
            }
            assert_eq!(ann.answer(&sale, &challenge, &wrong).await.code(), FAILED, "{captcha}: {wrong}");
            assert_eq!(ann.answer(&sale, &challenge, &right).await.code(), FAILED, "{captcha}: it is used up");
        }
    }
}

/// A1: two instances get the right answer 100 times at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_challenge_that_is_answered_a_hundred_times_at_once_yields_one_pass() {
    let mut system = System::start_with(&EASY).await;
    system.serve(false).await;
    let sale = system.create_sale(guarded(CaptchaKind::Slider, 5, 1)).await;
    let challenge = Caller::new(&system, "ann").challenge(&sale, json!({})).await;
    let right = right_answer(&challenge);
    let callers = system.instances.iter().cycle().take(100);
    let callers: Vec<Caller> =
        callers.map(|instance| Caller { at: instance.address, ..Caller::new(&system, "ann") }).collect();
    let answers = join_all(callers.iter().map(|caller| caller.answer(&sale, &challenge, &right))).await;
    assert_eq!(counted(&answers), BTreeMap::from([("201".into(), 1), (FAILED.into(), 99)]));
    system.finish().await;
}

/// A1: two instances get the pass 100 times at once, with 100 Idempotency-Keys.
#[tokio::test(flavor = "multi_thread")]
async fn a_pass_that_is_shown_a_hundred_times_at_once_buys_once() {
    let mut system = System::start_with(&EASY).await;
    system.serve(false).await;
    let sale = system.create_sale(guarded(CaptchaKind::Work, 200, 200)).await;
    let pass = Caller::new(&system, "ann").pass(&sale, json!({})).await;
    let clicks = (0..100).map(|n| {
        let mut click = buy(&system, &sale, "ann", &pass).idempotent(&format!("k{n}"));
        click.at = system.instances[n % 2].address;
        answered(click)
    });
    let answers = join_all(clicks).await;
    assert_eq!(counted(&answers), BTreeMap::from([("202".into(), 1), (INVALID.into(), 99)]));
    // Passes earned before a purchase are for that purchase: two of them do not buy two units.
    let ben = Caller::new(&system, "ben");
    let elsewhere = Caller { at: system.instances[1].address, ..Caller::new(&system, "ben") };
    let one = ben.pass(&sale, json!({})).await;
    let challenge = ben.challenge(&sale, json!({})).await;
    let earned = elsewhere.answer(&sale, &challenge, &right_answer(&challenge)).await;
    assert_eq!(earned.code(), "201");
    assert_eq!(buy(&system, &sale, "ben", earned.body["pass"].as_str().unwrap()).send().await.code(), "202");
    assert_eq!(buy(&system, &sale, "ben", &one).send().await.code(), INVALID);
    system.settled(&sale).await;
    assert_eq!((system.stock(&sale).await, system.orders(&sale).await), (198, 2));
    system.finish().await;
}

/// A1: a challenge or a pass is worthless to another buyer and in another sale, and such an attempt does not consume it.
#[tokio::test(flavor = "multi_thread")]
async fn a_challenge_and_a_pass_are_good_for_their_buyer_and_their_sale_alone() {
    let system = System::shared_with(&EASY).await;
    let sale = system.create_sale(guarded(CaptchaKind::Work, 5, 1)).await;
    let other = system.create_sale(guarded(CaptchaKind::Work, 5, 1)).await;
    let (ann, bob) = (Caller::new(&system, "ann"), Caller::new(&system, "bob"));
    let challenge = ann.challenge(&sale, json!({})).await;
    let right = right_answer(&challenge);
    assert_eq!(bob.answer(&sale, &challenge, &right).await.code(), FAILED);
    assert_eq!(ann.answer(&other, &challenge, &right).await.code(), FAILED);
    for forged in ["", "x", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"] {
        let forged = json!({ "challenge_id": forged });
        assert_eq!(ann.answer(&sale, &forged, &right).await.code(), FAILED);
    }
    let earned = ann.answer(&sale, &challenge, &right).await;
    assert_eq!(earned.code(), "201");
    let pass = earned.body["pass"].as_str().unwrap();

    assert_eq!(buy(&system, &sale, "bob", pass).send().await.code(), INVALID);
    assert_eq!(buy(&system, &other, "ann", pass).send().await.code(), INVALID);
    let id = challenge["challenge_id"].as_str().unwrap();
    for no_pass in ["", "x", &pass[1..], &format!("{pass}A"), id, &"p".repeat(1024)] {
        assert_eq!(buy(&system, &sale, "ann", no_pass).send().await.code(), INVALID, "{no_pass}");
    }
    assert_eq!(buy(&system, &sale, "ann", &"p".repeat(1025)).send().await.code(), "400 invalid-request");
    assert_eq!(buy(&system, &sale, "ann", pass).send().await.code(), "202");
    system.settled(&sale).await;
}

/// The order of answers: checks before the pass answer first, and only a purchase that takes units spends the pass.
#[tokio::test(flavor = "multi_thread")]
async fn a_pass_is_spent_only_by_a_purchase_that_takes_units() {
    let system = System::shared_with(&EASY).await;
    let sale = system.create_sale(guarded(CaptchaKind::Work, 3, 5)).await;
    let empty = system.create_sale(guarded(CaptchaKind::Work, 0, 1)).await;
    let plain = system.create_sale(terms(5)).await;
    let ann = Caller::new(&system, "ann");
    let pass = ann.pass(&sale, json!({})).await;
    let with = |body: Value| system.buy(&sale, "ann").body(body).send();
    assert_eq!(with(json!({ "key": "guessed" })).await.code(), "403 wrong-key", "with no pass, too");
    assert_eq!(with(json!({ "key": "guessed", "pass": pass })).await.code(), "403 wrong-key");
    assert_eq!(with(json!({ "key": sale.key, "pass": pass, "quantity": 4 })).await.code(), "409 sold-out");
    assert_eq!(with(json!({ "key": sale.key, "pass": pass, "quantity": 3 })).await.code(), "202");
    // Sold out: a buyer without a pass gets this answer too, also from the instance's memory.
    for _ in 0..3 {
        assert_eq!(system.buy(&sale, "bob").send().await.code(), INVALID);
        assert_eq!(system.buy(&empty, "bob").send().await.code(), INVALID);
    }
    let bobs = Caller::new(&system, "bob").pass(&empty, json!({})).await;
    for _ in 0..3 {
        assert_eq!(buy(&system, &empty, "bob", &bobs).send().await.code(), "409 sold-out");
    }
    // A sale without a challenge ignores a pass.
    assert_eq!(buy(&system, &plain, "ann", "anything").send().await.code(), "202");
    system.settled(&sale).await;
}

/// Answers cannot be collected before the sale, or after its end.
#[tokio::test(flavor = "multi_thread")]
async fn challenges_are_given_from_shortly_before_the_start_until_the_end() {
    let system = System::shared_with(&EASY).await;
    let lasting = |starts_in_ms, ends_in_ms| NewSale { starts_in_ms, ends_in_ms, ..guarded(CaptchaKind::Work, 5, 1) };
    let ann = Caller::new(&system, "ann");
    let far = system.create_sale(lasting(600_000, 700_000)).await;
    let refused = ann.ask(&far, json!({})).await;
    assert_eq!(refused.code(), "403 not-started");
    let [starts_at_ms, opens_at_ms] = ["starts_at_ms", "opens_at_ms"].map(|name| refused.body[name].as_i64().unwrap());
    assert_eq!(starts_at_ms - opens_at_ms, 120_000);
    let near = system.create_sale(lasting(100_000, 200_000)).await;
    let pass = ann.pass(&near, json!({})).await;
    assert_eq!(buy(&system, &near, "ann", &pass).send().await.code(), "403 not-started");
    let over = system.create_sale(lasting(-2_000, -1_000)).await;
    assert_eq!(ann.ask(&over, json!({})).await.code(), "403 ended");
    assert_eq!(ann.answer(&over, &json!({ "challenge_id": "x" }), &json!("x")).await.code(), "403 ended");
    // A kind of challenge that the sale does not offer is refused.
    let plain = system.create_sale(terms(5)).await;
    for (sale, wish) in [(&plain, json!({})), (&plain, json!({ "kind": "work" })), (&near, json!({ "kind": "image" }))]
    {
        assert_eq!(ann.ask(sale, wish).await.code(), "409 no-challenge");
    }
    assert_eq!(ann.ask(&near, json!({ "kind": "none" })).await.code(), "400 invalid-request");
    assert_eq!(ann.post("999999", "challenges", &json!({})).await.code(), "404 unknown-sale");
    let url = format!("/api/v1/sales/{}/challenges", near.id);
    let anybody = Client::new().post(system.url(&url)).send().await.unwrap();
    assert_eq!(anybody.status(), 401);
    // No body is the same as an empty one.
    assert_eq!(system.post(&url, "ann").await.0, 201);
}

/// Waits until well after this moment by the service's clock. Redis's clock differs by milliseconds.
async fn until_past(system: &System, at_ms: &Value) {
    let at_ms = at_ms.as_i64().unwrap();
    until(true, || async { system.get("/api/v1/time", None).await.1["now_ms"].as_i64().unwrap() > at_ms + 500 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_challenge_and_a_pass_end_with_their_time() {
    let short = [
        ("SECKILL_CAPTCHA__CHALLENGE_TTL_MS", "2000"),
        ("SECKILL_CAPTCHA__PASS_TTL_MS", "2000"),
        ("SECKILL_CAPTCHA__OPENS_BEFORE_MS", "0"),
    ];
    let system = System::start_with(&[&EASY[..], &short].concat()).await;
    let sale = system.create_sale(guarded(CaptchaKind::Work, 5, 1)).await;
    let ann = Caller::new(&system, "ann");
    let challenge = ann.challenge(&sale, json!({})).await;
    until_past(&system, &challenge["expires_at_ms"]).await;
    assert_eq!(ann.answer(&sale, &challenge, &right_answer(&challenge)).await.code(), FAILED);
    // On a busy machine an answer may take two seconds.
    let earn = || async {
        let challenge = ann.challenge(&sale, json!({})).await;
        let earned = ann.answer(&sale, &challenge, &right_answer(&challenge)).await;
        if earned.status == 201 { Ok(earned.body) } else { Err(earned.code()) }
    };
    let earned = eventually(earn).await;
    until_past(&system, &earned["expires_at_ms"]).await;
    assert_eq!(buy(&system, &sale, "ann", earned["pass"].as_str().unwrap()).send().await.code(), INVALID);
    let in_time = || async {
        let earned = earn().await?;
        let bought = buy(&system, &sale, "ann", earned["pass"].as_str().unwrap()).send().await;
        if bought.status == 202 { Ok(()) } else { Err(bought.code()) }
    };
    eventually(in_time).await;
    system.settled(&sale).await;
    system.finish().await;
}

/// A15: questions and answers are limited by account and by address. A request that one limit refuses consumes nothing of the other.
#[tokio::test(flavor = "multi_thread")]
async fn guessing_is_limited_by_buyer_and_by_address() {
    let limits = [
        ("SECKILL_CAPTCHA__BUYER_LIMIT", "3"),
        ("SECKILL_CAPTCHA__ADDRESS_LIMIT", "5"),
        ("SECKILL_CAPTCHA__WINDOW_MS", "86400000"),
    ];
    let system = System::start_with(&[&EASY[..], &limits].concat()).await;
    let sale = system.create_sale(guarded(CaptchaKind::Image, 5, 1)).await;
    let from = |user: &'static str, from: &'static str| Caller { from, ..Caller::new(&system, user) };
    let guess = json!({ "challenge_id": "x" });
    for (caller, answers) in [
        (from("ann", "9.9.9.9"), "ok ok ok buyer buyer buyer"),
        (from("ben", "9.9.9.9"), "ok ok address address"),
        // From elsewhere, all three are left.
        (from("eve", "9.9.9.9"), "address"),
        (from("eve", "8.8.8.8"), "ok ok ok buyer"),
        (from("ann", "8.8.8.8"), "buyer"),
    ] {
        for expected in answers.split(' ') {
            let (asked, answered) =
                (caller.ask_drawn(&sale, json!({})).await, caller.answer(&sale, &guess, &json!("x")).await);
            if expected == "ok" {
                assert_eq!((asked.code().as_str(), answered.code().as_str()), ("201", FAILED), "{}", caller.user);
                continue;
            }
            for refused in [asked, answered] {
                assert_eq!(refused.code(), "429 quota-exceeded", "{} from {}", caller.user, caller.from);
                let policy = refused.headers["ratelimit-policy"].to_str().unwrap();
                assert!(policy.starts_with(&format!("\"{expected}\";")), "{policy}");
                let retry: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
                assert!((1..=86_400).contains(&retry));
            }
        }
    }
    // The way without pictures is left, with a limit of its own.
    let (ann, work) = (from("ann", "9.9.9.9"), json!({ "kind": "work" }));
    for _ in 0..3 {
        ann.pass(&sale, work.clone()).await;
    }
    assert_eq!(ann.ask(&sale, work).await.code(), "429 quota-exceeded");
    system.finish().await;
}

/// When no challenge can be drawn, a 503 comes at once and counts against no limit. Purchases continue, and work can be chosen.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_pool_is_a_503_at_once_and_disturbs_no_purchase() {
    let settings = [("SECKILL_CAPTCHA__DRAW_THREADS", "0"), ("SECKILL_CAPTCHA__BUYER_LIMIT", "6")];
    let system = System::start_with(&[&EASY[..], &settings].concat()).await;
    let sale = system.create_sale(guarded(CaptchaKind::Slider, 5, 1)).await;
    let plain = system.create_sale(terms(50)).await;
    let ann = Caller::new(&system, "ann");
    let asks = join_all((0..100).map(|_| ann.ask(&sale, json!({}))));
    let users: Vec<String> = (0..50).map(|n| format!("u{n}")).collect();
    let purchases = join_all(users.iter().map(|user| accepted_at_once(system.buy(&plain, user).idempotent("k"))));
    let (asks, at_once) = tokio::join!(asks, purchases);
    assert_eq!(counted(&asks), BTreeMap::from([("503 temporarily-unavailable".into(), 100)]));
    assert!(asks.iter().all(|answer| answer.headers["retry-after"] == "1"));
    let at_once = at_once.into_iter().filter(|is_at_once| *is_at_once).count();
    assert!(at_once > 25, "{at_once} of 50 purchases were accepted at once");
    let pass = ann.pass(&sale, json!({ "kind": "work" })).await;
    assert_eq!(buy(&system, &sale, "ann", &pass).send().await.code(), "202");
    let metrics = reqwest::get(system.url("/metrics")).await.unwrap().text().await.unwrap();
    for line in [
        "seckill_shed_total{what=\"challenges\"} ",
        "seckill_challenges_total{kind=\"work\"} ",
        "seckill_challenge_answers_total{kind=\"work\",result=\"right\"} ",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
    system.settled(&sale).await;
    system.settled(&plain).await;
    system.finish().await;
}

/// After Redis's memory loss, a refill restores the passes: a used pass stays spent, and an unused one stays good.
#[tokio::test(flavor = "multi_thread")]
async fn a_spent_pass_stays_spent_through_a_refill_and_others_stay_good() {
    let redis = OwnRedis::start().await;
    let system = System::start_with(&[&EASY[..], &[("REDIS_URL", &redis.url())]].concat()).await;
    let sale = system.create_sale(guarded(CaptchaKind::Work, 10, 5)).await;
    let (ann, bob) = (Caller::new(&system, "ann"), Caller::new(&system, "bob"));
    let mut spent = Vec::new();
    for _ in 0..3 {
        let pass = ann.pass(&sale, json!({})).await;
        assert_eq!(buy(&system, &sale, "ann", &pass).send().await.code(), "202");
        spent.push(pass);
    }
    let (anns, bobs) = (ann.pass(&sale, json!({})).await, bob.pass(&sale, json!({})).await);
    system.settled(&sale).await;
    redis.ask(&["FLUSHALL"]).await.unwrap();
    for pass in &spent {
        assert_eq!(answered(buy(&system, &sale, "ann", pass)).await.code(), INVALID);
    }
    for (user, pass) in [("ann", &anns), ("bob", &bobs)] {
        assert_eq!(answered(buy(&system, &sale, user, pass).idempotent("k")).await.code(), "202");
    }
    system.settled(&sale).await;
    assert_eq!(system.stock(&sale).await, 5);
    system.finish().await;
}

/// A purchase is cut off after its hold. One script takes the units and spends the pass, so the repeat needs no other pass.
#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_that_was_cut_off_after_its_hold_needs_no_other_pass() {
    let settings = [("SECKILL_RECONCILE__UNCONFIRMED_AFTER_MS", "300")];
    let system = System::start_with(&[&EASY[..], &settings].concat()).await;
    let sale = system.create_sale(guarded(CaptchaKind::Work, 3, 2)).await;
    let pass = Caller::new(&system, "ann").pass(&sale, json!({})).await;
    refuse_commits(&system).await;
    hold_without_commit(&system, &sale, &buy(&system, &sale, "ann", &pass).idempotent("k"), 2).await;
    assert_eq!(system.orders(&sale).await, 0);
    assert_eq!(system.available(&sale).await, Some(2), "the hold stays");
    allow_commits(&system).await;
    system.settled(&sale).await;
    let again = answered(buy(&system, &sale, "ann", &pass).idempotent("k")).await;
    assert_eq!(again.body["status"], "pending_payment", "{}", again.body);
    assert_eq!(buy(&system, &sale, "ann", &pass).idempotent("another").send().await.code(), INVALID);
    assert_eq!((system.orders(&sale).await, system.stock(&sale).await), (1, 2));
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_creates_guarded_sales() {
    let system = System::shared_with(&EASY).await;
    for kind in ["none", "image", "slider", "work"] {
        let terms = ["sale", "create", "--product", "Phone", "--price-cents", "100", "--stock", "5", "--captcha", kind];
        let created: Value = serde_json::from_str(&seckill(&system, &terms, "").unwrap()).unwrap();
        let path = format!("/api/v1/sales/{}", created["sale_id"]);
        assert_eq!(system.get(&path, None).await.1["captcha"], kind);
    }
}
