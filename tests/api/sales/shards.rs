//! Sales with shards: a buyer with an empty home shard buys from another. "Sold out" comes only when nothing is left anywhere (protocol,
//! rule 15).

use std::time::Duration;

use futures_util::future::join_all;

use seckill_buying::sale_work::refill::lock_name;
use seckill_domain::captcha::CaptchaKind;
use seckill_domain::ids::{IdempotencyKey, OrderId, Shard, Units, UserId};
use seckill_domain::sale::{NewSale, Wave};
use seckill_domain::shards::{SaleShards, ShardCount};
use seckill_harness::{Answer, Sale, System, terms, until, wait_until};
use seckill_redis::lock::Lock;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::buying::challenges::{Caller, EASY, guarded};
use crate::buying::purchase_limits;
use crate::flow::callers_apart::redis;
use crate::redis::own_redis::OwnRedis;

/// Buyers repeat their requests until the answer is clear.
const UNLIMITED: (&str, &str) = ("SECKILL_PURCHASE__BUYER_LIMIT", "-1");

fn sharded(stock: i64, shards: u64) -> NewSale {
    NewSale { shards: ShardCount::parse(shards).unwrap(), ..terms(stock) }
}

fn buyers_of(of: SaleShards, home: i16) -> impl Iterator<Item = String> {
    (0..).map(|n| format!("u{n}")).filter(move |user| of.home(user) == Shard(home))
}

pub async fn buy(system: &System, sale: &Sale, user: &str) -> Answer {
    system.buy(sale, user).idempotent("k").send().await
}

/// The first answer other than 503.
pub async fn answered(system: &System, sale: &Sale, user: &str) -> Answer {
    purchase_limits::answered(system.buy(sale, user).idempotent("k")).await
}

async fn orders_at(system: &System, sale: &Sale, shard: i16) -> i64 {
    let orders = sqlx::query_scalar("SELECT count(*) FROM orders WHERE sale_id = $1 AND shard = $2");
    orders.bind(sale.id.get()).bind(shard).fetch_one(&system.sql).await.unwrap()
}

fn key(system: &System, of: SaleShards, shard: i16, name: &str) -> String {
    format!("{}{{{}}}:{name}", system.config.redis.prefix, of.tag(Shard(shard)))
}

/// Takes the lock of a sale's refill: nobody can finish a refill while it is held.
async fn refill_lock(system: &System, of: SaleShards) -> Lock {
    let server: String = redis(system, &["INFO", "server"]).await;
    let run_id = server.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap();
    system.stores.gate.lock(&lock_name(of, run_id), Duration::from_secs(600)).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_gets_exactly_the_stock_of_all_shards() {
    // All buyers have one address.
    let mut system = System::start_with(&[UNLIMITED, ("SECKILL_PURCHASE__ADDRESS_LIMIT", "-1")]).await;
    system.serve(false).await;
    let sale = system.create_sale(sharded(100, 8)).await;
    let users: Vec<String> = (0..400).map(|n| format!("u{n}")).collect();
    let answers = join_all(users.iter().map(|user| answered(&system, &sale, user))).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 202).count(), 100);
    assert!(answers.iter().all(|answer| ["202", "409 sold-out"].contains(&answer.code().as_str())));
    system.settled(&sale).await;
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (0, Some(0)));
    for (user, before) in users.iter().zip(&answers).step_by(7) {
        let again = answered(&system, &sale, user).await;
        assert_eq!(again.code(), before.code(), "{user}");
        assert!(again.status != 202 || again.order_id() == before.order_id());
    }
    system.finish().await;
}

/// All buyers have the same home shard: it sells its own stock, and then that of the others.
#[tokio::test(flavor = "multi_thread")]
async fn buyers_of_one_shard_get_the_units_of_all() {
    let system = System::shared_with(&[UNLIMITED]).await;
    let sale = system.create_sale(sharded(12, 4)).await;
    let of = system.shards(&sale).await;
    let users: Vec<String> = buyers_of(of, 0).take(16).collect();
    let mut tickets = Vec::new();
    for (n, user) in users.iter().enumerate() {
        let answer = answered(&system, &sale, user).await;
        assert_eq!(answer.code(), if n < 12 { "202" } else { "409 sold-out" }, "{n}");
        tickets.push(answer);
    }
    system.settled(&sale).await;
    for shard in 0..4 {
        assert_eq!(orders_at(&system, &sale, shard).await, 3, "shard {shard}");
    }
    let metrics = reqwest::get(system.url("/metrics")).await.unwrap().text().await.unwrap();
    for result in ["lent", "refused"] {
        let line = format!("seckill_loans_total{{result=\"{result}\"}}");
        assert!(metrics.contains(&line), "{line}");
    }
    // Each buyer's limit and ticket are at the home shard.
    for (user, before) in users.iter().zip(&tickets).take(12) {
        assert_eq!(answered(&system, &sale, user).await.order_id(), before.order_id());
        assert_eq!(system.buy(&sale, user).idempotent("other").send().await.code(), "409 already-purchased");
    }
    // A borrowed unit that comes back is sold again, and its buyer may buy again.
    let last = tickets[11].order_id();
    assert_eq!(system.post(&format!("/api/v1/orders/{last}/cancel"), &users[11]).await.0, 200);
    system.settled(&sale).await;
    until("202", || async { system.buy(&sale, &users[11]).idempotent("again").send().await.code() }).await;
    system.settled(&sale).await;
    assert_eq!(system.available(&sale).await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn borrowed_units_and_waves_survive_a_loss_of_memory() {
    let redis = OwnRedis::start().await;
    let system = System::start_with(&[UNLIMITED, ("REDIS_URL", &redis.url())]).await;
    let waves = vec![Wave { after_ms: 3_600_000, units: 5 }];
    let sale = system.create_sale(NewSale { ends_in_ms: 86_400_000, waves, ..sharded(13, 4) }).await;
    let of = system.shards(&sale).await;
    let users: Vec<String> = buyers_of(of, 1).take(14).collect();
    let mut tickets = Vec::new();
    for user in &users[..6] {
        tickets.push(answered(&system, &sale, user).await.order_id());
    }
    system.settled(&sale).await;
    redis.ask(&["FLUSHALL"]).await.unwrap();
    for (user, ticket) in users.iter().zip(&tickets) {
        assert_eq!(answered(&system, &sale, user).await.order_id(), *ticket);
        assert_eq!(system.buy(&sale, user).idempotent("other").send().await.code(), "409 already-purchased");
    }
    system.settled(&sale).await;
    let due = sqlx::query("UPDATE sale_waves SET due_at = now() WHERE sale_id = $1");
    due.bind(sale.id.get()).execute(&system.sql).await.unwrap();
    system.left(&sale, 7).await;
    system.settled(&sale).await;
    assert_eq!(system.available(&sale).await, Some(7));
    for (n, user) in users.iter().enumerate().skip(6) {
        let answer =
            wait_until(|| answered(&system, &sale, user), |answer| n >= 13 || answer.code() != "409 sold-out").await;
        assert_eq!(answer.code(), if n < 13 { "202" } else { "409 sold-out" }, "{n}");
    }
    system.settled(&sale).await;
    system.finish().await;
}

/// A lender that is being refilled is not empty: no buyer gets "sold out" meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_lender_is_refilled_nothing_is_sold_out() {
    let system = System::shared_with(&[UNLIMITED]).await;
    let sale = system.create_sale(sharded(2, 2)).await;
    let of = system.shards(&sale).await;
    let users: Vec<String> = buyers_of(of, 0).take(3).collect();
    assert_eq!(answered(&system, &sale, &users[0]).await.code(), "202");
    system.settled(&sale).await;
    let lock = refill_lock(&system, of).await;
    redis::<()>(&system, &["HSET", &key(&system, of, 1, "sale"), "state", "filling"]).await;
    for _ in 0..5 {
        assert_eq!(buy(&system, &sale, &users[1]).await.status, 503);
    }
    lock.release().await.unwrap();
    assert_eq!(answered(&system, &sale, &users[1]).await.code(), "202");
    assert_eq!(answered(&system, &sale, &users[2]).await.code(), "409 sold-out");
    system.settled(&sale).await;
}

/// A buyer with a request that died after the loan was written, as `reserve.lua` leaves it.
struct Dead<'a> {
    system: &'a System,
    of: SaleShards,
    user: String,
    order: String,
    lender: i16,
}

impl<'a> Dead<'a> {
    async fn after_the_loan(system: &'a System, sale: &Sale, lender: i16) -> Self {
        let dead = Self::unlisted(system, sale, lender).await;
        dead.list(0).await;
        dead
    }

    /// The same, but not yet visible to the reconciler.
    async fn unlisted(system: &'a System, sale: &Sale, lender: i16) -> Self {
        let of = system.shards(sale).await;
        let user = buyers_of(of, 0).next().unwrap();
        let secret = system.stores.ledger.orders.order_id_secret().await.unwrap();
        let (buyer, idempotency) = (UserId::parse(&user).unwrap(), IdempotencyKey::parse("k").unwrap());
        let order = OrderId::derive(&secret, sale.id, &buyer, &idempotency).to_string();
        let dead = Self { system, of, user, order, lender };
        dead.set(0, "tickets", &dead.order, &format!("o|1|{lender}|1|{}", dead.user)).await;
        dead.set(0, "loans", &dead.user, &dead.order).await;
        dead.set(0, "sale", "loan", "1").await;
        dead
    }

    async fn set(&self, shard: i16, name: &str, field: &str, value: &str) {
        redis::<()>(self.system, &["HSET", &key(self.system, self.of, shard, name), field, value]).await;
    }

    async fn list(&self, shard: i16) {
        let now_ms = self.system.stores.ledger.now_ms().await.unwrap().to_string();
        let key = key(self.system, self.of, shard, "unconfirmed");
        redis::<()>(self.system, &["ZADD", &key, &now_ms, &self.order]).await;
    }

    /// The lender has given the unit too.
    async fn after_the_hold(&self) {
        self.set(self.lender, "tickets", &self.order, &format!("l|1|1|{}", self.user)).await;
        let sale = key(self.system, self.of, self.lender, "sale");
        redis::<()>(self.system, &["HINCRBY", &sale, "stock", "-1"]).await;
        self.list(self.lender).await;
    }

    async fn state(&self, state: &str) {
        self.set(self.lender, "sale", "state", state).await;
    }
}

/// A system with a reconciler that finishes interrupted requests after this time.
async fn finishing_after(ms: &str) -> System {
    System::shared_with(&[UNLIMITED, ("SECKILL_RECONCILE__UNCONFIRMED_AFTER_MS", ms)]).await
}

/// While the lender is away or holds nothing, the repeat takes nothing. When the lender is back, it finds the same hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_whose_lender_is_away_waits_and_finds_the_same_hold() {
    let system = finishing_after("600000").await;
    let sale = system.create_sale(sharded(4, 2)).await;
    let dead = Dead::after_the_loan(&system, &sale, 1).await;
    assert_eq!(buy(&system, &sale, &dead.user).await.status, 503, "a loan is no hold");
    dead.after_the_hold().await;
    let lock = refill_lock(&system, dead.of).await;
    dead.state("filling").await;
    for _ in 0..3 {
        assert_eq!(buy(&system, &sale, &dead.user).await.status, 503, "the lender is away");
        let other = system.buy(&sale, &dead.user).idempotent("other").send().await;
        assert_eq!(other.status, 503, "the other purchase is under way");
    }
    dead.state("open").await;
    lock.release().await.unwrap();
    let ticket = answered(&system, &sale, &dead.user).await;
    assert_eq!((ticket.code().as_str(), ticket.order_id()), ("202", dead.order.clone()));
    system.settled(&sale).await;
    assert_eq!((system.orders(&sale).await, system.available(&sale).await), (1, Some(3)));
}

/// The reconciler finishes a dead request: it commits a hold, and takes back a loan without one.
#[tokio::test(flavor = "multi_thread")]
async fn loans_of_dead_requests_are_finished() {
    let system = finishing_after("100").await;
    let sale = system.create_sale(sharded(4, 2)).await;
    let dead = Dead::after_the_loan(&system, &sale, 1).await;
    let ticket = answered(&system, &sale, &dead.user).await;
    assert_eq!((ticket.code().as_str(), ticket.order_id()), ("202", dead.order.clone()));
    system.settled(&sale).await;
    assert_eq!((system.orders(&sale).await, system.available(&sale).await), (1, Some(3)));

    let sale = system.create_sale(sharded(4, 2)).await;
    let dead = Dead::unlisted(&system, &sale, 1).await;
    dead.after_the_hold().await;
    dead.list(0).await;
    until(1, || system.orders(&sale)).await;
    system.settled(&sale).await;
    let other = system.buy(&sale, &dead.user).idempotent("other").send().await;
    assert_eq!(other.code(), "409 already-purchased");
    assert_eq!((orders_at(&system, &sale, 1).await, system.available(&sale).await), (1, Some(3)));
}

/// A full batch of the reconciler's loans waits for a lender that is being refilled. Later loans are still finished.
#[tokio::test(flavor = "multi_thread")]
async fn loans_that_wait_for_their_lender_hide_none_behind_them() {
    let system = finishing_after("100").await;
    let sale = system.create_sale(sharded(6, 3)).await;
    let of = system.shards(&sale).await;
    let lock = refill_lock(&system, of).await;
    let state = async |state| redis::<()>(&system, &["HSET", &key(&system, of, 1, "sale"), "state", state]).await;
    state("filling").await;
    let [tickets, loans, unconfirmed] = ["tickets", "loans", "unconfirmed"].map(|name| key(&system, of, 0, name));
    for (n, user) in buyers_of(of, 0).skip(1).take(500).enumerate() {
        let order = Uuid::from_u128(n as u128 + 1).to_string();
        redis::<()>(&system, &["HSET", &tickets, &order, &format!("o|1|1|{}|{user}", n + 2)]).await;
        redis::<()>(&system, &["HSET", &loans, &user, &order]).await;
        redis::<()>(&system, &["ZADD", &unconfirmed, "1", &order]).await;
    }
    let dead = Dead::after_the_loan(&system, &sale, 2).await;
    redis::<()>(&system, &["HSET", &key(&system, of, 0, "sale"), "loan", "501"]).await;
    until(None, || async { redis::<Option<String>>(&system, &["ZSCORE", &unconfirmed, &dead.order]).await }).await;
    state("open").await;
    lock.release().await.unwrap();
    system.settled(&sale).await;
    assert_eq!((system.orders(&sale).await, system.available(&sale).await), (0, Some(6)));
}

/// A buyer asks for two units while each shard has one: a hold comes from one shard.
#[tokio::test(flavor = "multi_thread")]
async fn two_units_are_sold_out_where_each_shard_has_one() {
    let system = System::shared_with(&[UNLIMITED]).await;
    let sale = system.create_sale(NewSale { per_user: Units::parse(2).unwrap(), ..sharded(3, 2) }).await;
    let of = system.shards(&sale).await;
    let users: Vec<String> = buyers_of(of, 0).take(3).collect();
    assert_eq!(answered(&system, &sale, &users[0]).await.code(), "202", "then each of the shards has one");
    let two = system.buy(&sale, &users[1]).idempotent("two").body(two_of(&sale)).answered();
    assert_eq!(two.await.code(), "409 sold-out");
    assert_eq!(system.available(&sale).await, Some(2), "nothing was taken");
    assert_eq!(answered(&system, &sale, &users[1]).await.code(), "202");
    assert_eq!(answered(&system, &sale, &users[2]).await.code(), "202", "nobody remembers that it was sold out");
    system.settled(&sale).await;
    assert_eq!((orders_at(&system, &sale, 0).await, orders_at(&system, &sale, 1).await), (2, 1));
}

fn two_of(sale: &Sale) -> Value {
    json!({ "key": sale.key, "quantity": 2 })
}

/// A lender is paused, while the buyer's home is not. Its units may be for sale again at any moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_has_reached_one_shard_makes_nothing_sold_out() {
    let system = System::shared_with(&[UNLIMITED]).await;
    let sale = system.create_sale(sharded(4, 2)).await;
    let of = system.shards(&sale).await;
    let pause = async || redis::<()>(&system, &["HSET", &key(&system, of, 1, "sale"), "state", "paused"]).await;
    for (n, user) in buyers_of(of, 0).take(5).enumerate() {
        pause().await;
        let once = buy(&system, &sale, &user).await;
        assert!(
            n == 4 || ["202", "503 temporarily-unavailable"].contains(&once.code().as_str()),
            "{n}: {}",
            once.code()
        );
        // Supervision sees that the shards differ, and sets the status again.
        assert_eq!(answered(&system, &sale, &user).await.code(), if n < 4 { "202" } else { "409 sold-out" }, "{n}");
    }
    system.settled(&sale).await;
}

/// The home shard spends a borrower's pass when it closes the loan, once. The pass is still spent after a refill.
#[tokio::test(flavor = "multi_thread")]
async fn the_pass_of_a_borrower_buys_once() {
    let redis = OwnRedis::start().await;
    let system = System::start_with(&[&EASY[..], &[("REDIS_URL", &redis.url())]].concat()).await;
    let shards = ShardCount::parse(2).unwrap();
    let sale = system.create_sale(NewSale { shards, ..guarded(CaptchaKind::Work, 6, 3) }).await;
    let of = system.shards(&sale).await;
    let users: Vec<String> = buyers_of(of, 0).take(2).collect();
    let [first, user] = [0, 1].map(|n| users[n].as_str());
    let ask = async |user: &str, pass: &str| {
        system.buy(&sale, user).body(json!({ "key": sale.key, "pass": pass })).answered().await.code()
    };
    for _ in 0..3 {
        let pass = Caller::new(&system, first).pass(&sale, json!({})).await;
        assert_eq!(ask(first, &pass).await, "202");
    }
    let caller = Caller::new(&system, user);
    let pass = caller.pass(&sale, json!({})).await;
    assert_eq!(ask(user, &pass).await, "202", "borrowed: the home shard is empty");
    system.settled(&sale).await;
    assert_eq!((orders_at(&system, &sale, 0).await, orders_at(&system, &sale, 1).await), (3, 1));
    assert_eq!(ask(user, &pass).await, "403 pass-invalid");
    let other = caller.pass(&sale, json!({})).await;
    redis.ask(&["FLUSHALL"]).await.unwrap();
    assert_eq!(ask(user, &pass).await, "403 pass-invalid");
    assert_eq!(ask(user, &other).await, "202");
    system.settled(&sale).await;
    system.finish().await;
}

/// The deadline of one order passes.
const LET_LAPSE: [&str; 2] = [
    "UPDATE orders SET expires_at = now() - interval '1 second' WHERE id = $1",
    "UPDATE outbox SET status = 'pending', due_at = now() - interval '1 second', next_attempt_at = now()
     WHERE order_id = $1 AND kind = 'group_expire' AND status IN ('pending', 'sent')",
];

/// The home shard counts the holds that a borrower lets lapse, and a refill counts them again.
#[tokio::test(flavor = "multi_thread")]
async fn lapsed_holds_of_a_borrower_count_at_home() {
    let redis = OwnRedis::start().await;
    let system = System::start_with(&[UNLIMITED, ("REDIS_URL", &redis.url())]).await;
    let sale = system.create_sale(sharded(2, 2)).await;
    let of = system.shards(&sale).await;
    let users: Vec<String> = buyers_of(of, 0).take(2).collect();
    let [first, user] = [0, 1].map(|n| users[n].as_str());
    assert_eq!(answered(&system, &sale, first).await.code(), "202");
    // Returned units are kept aside for a moment.
    let ask = || wait_until(|| system.buy(&sale, user).send(), |answer| ![503, 409].contains(&answer.status));
    for _ in 0..2 {
        let order: Uuid = ask().await.order_id().parse().unwrap();
        system.settled(&sale).await;
        for sql in LET_LAPSE {
            assert_eq!(sqlx::query(sql).bind(order).execute(&system.sql).await.unwrap().rows_affected(), 1);
        }
        system.left(&sale, 1).await;
        system.settled(&sale).await;
    }
    assert_eq!(orders_at(&system, &sale, 1).await, 2, "both were borrowed");
    assert_eq!(ask().await.code(), "429 quota-exceeded");
    redis.ask(&["FLUSHALL"]).await.unwrap();
    assert_eq!(ask().await.code(), "429 quota-exceeded");
    system.finish().await;
}

/// The auditor knows the place of each hold: the shard of its record, and for a loan also its buyer's home.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_at_another_shard_than_its_record_says_is_found() {
    let system = System::shared_with(&[UNLIMITED]).await;
    let sale = system.create_sale(sharded(4, 2)).await;
    let of = system.shards(&sale).await;
    for user in buyers_of(of, 0).take(3) {
        assert_eq!(answered(&system, &sale, &user).await.code(), "202");
    }
    system.settled(&sale).await;
    let found = async || {
        let verdict = system.audit(&sale).await.unwrap().unwrap();
        verdict.findings.into_iter().map(|finding| finding.problem).collect::<Vec<_>>()
    };
    assert_eq!(found().await, [""; 0]);
    let borrowed = sqlx::query_scalar("SELECT id FROM orders WHERE sale_id = $1 AND shard = 1").bind(sale.id.get());
    let order: Uuid = borrowed.fetch_one(&system.sql).await.unwrap();
    let set_shard = async |shard: i16| {
        let set = sqlx::query("UPDATE orders SET shard = $2 WHERE id = $1").bind(order).bind(shard);
        set.execute(&system.sql).await.unwrap();
    };
    set_shard(0).await;
    assert_eq!(found().await, ["live orders are not where their records say"]);
    set_shard(1).await;
    assert_eq!(found().await, [""; 0]);
    let tickets = key(&system, of, 0, "tickets");
    redis::<()>(&system, &["HDEL", &tickets, &order.to_string()]).await;
    assert_eq!(
        found().await,
        ["live orders are not where their records say"],
        "the buyer's home has forgotten the loan"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_never_change() {
    let system = System::shared_with(&[UNLIMITED]).await;
    let sale = system.create_sale(sharded(4, 2)).await;
    let change = sqlx::query("UPDATE sales SET shards = 3 WHERE id = $1").bind(sale.id.get()).execute(&system.sql);
    assert!(change.await.unwrap_err().to_string().contains("never change"));
}
