//! Holds that are taken and left to lapse (protocol, rule 17).

use seckill_domain::sale::NewSale;
use seckill_harness::{Answer, Sale, System, terms};
use serde_json::{Value, json};

use crate::backoffice::admin_sessions::seckill;
use crate::orders::payments_and_callbacks::{Callback, order, pay};
use crate::redis::own_redis::OwnRedis;

async fn let_one_lapse(system: &System, sale: &Sale, user: &str, from: &str) {
    let answer = system.buy(sale, user).from(from).send().await;
    assert_eq!(answer.code(), "202", "{user}");
    system.settled(sale).await;
    system.let_deadlines_pass(sale).await;
    system.left(sale, 3).await;
    system.settled(sale).await;
}

fn assert_waits(answer: &Answer) {
    assert_eq!(answer.code(), "429 quota-exceeded");
    assert_eq!(answer.headers["ratelimit-policy"], "\"lapsed-holds\";q=2;w=600");
    let wait: u64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=600).contains(&wait), "{wait}");
}

/// The output of `seckill sale lapsed-holds`, without the times.
fn shown(system: &System, sale: &Sale, by: &str) -> Value {
    let id = sale.id.to_string();
    let printed = seckill(system, &["sale", "lapsed-holds", &id, "--by", by, "--format", "json"], "").unwrap();
    let mut rows: Value = serde_json::from_str(&printed).unwrap();
    for row in rows.as_array_mut().unwrap() {
        assert!(row.as_object_mut().unwrap().remove("last_lapsed_at").unwrap().is_string());
    }
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn who_lets_two_holds_lapse_waits_and_nobody_else() {
    let system = System::shared().await;
    let (sale, other) = (system.create_sale(terms(3)).await, system.create_sale(terms(3)).await);
    let first = system.buy(&sale, "hoarder").idempotent("first").from("10.3.0.1").send().await;
    assert_eq!(first.code(), "202");
    let_one_lapse(&system, &sale, "unlucky", "10.3.0.1").await;
    let_one_lapse(&system, &sale, "hoarder", "10.3.0.2").await;

    assert_waits(&system.buy(&sale, "hoarder").send().await);
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (3, Some(3)));
    // The ticket of an ended order is still found, and the wait is for this sale alone.
    let again = system.buy(&sale, "hoarder").idempotent("first").send().await;
    assert_eq!((again.code().as_str(), &again.body["status"]), ("202", &json!("cancelled")));
    assert_eq!(system.buy(&other, "hoarder").send().await.code(), "202");
    // One lapse may be an accident, and a cancelled order is no lapse.
    let answer = system.buy(&sale, "unlucky").send().await;
    assert_eq!(answer.code(), "202");
    system.settled(&sale).await;
    assert_eq!(system.post(&format!("/api/v1/orders/{}/cancel", answer.order_id()), "unlucky").await.0, 200);
    system.left(&sale, 3).await;
    system.settled(&sale).await;
    assert_eq!(system.buy(&sale, "unlucky").send().await.code(), "202");

    let line = |name: &str, holds: i64, buyers: i64, addresses: i64| json!({ "name": name, "holds": holds, "units": holds, "buyers": buyers, "addresses": addresses });
    assert_eq!(shown(&system, &sale, "buyer"), json!([line("hoarder", 2, 1, 2), line("unlucky", 1, 1, 1)]));
    assert_eq!(shown(&system, &sale, "address"), json!([line("10.3.0.1", 2, 2, 1), line("10.3.0.2", 1, 1, 1)]));
    system.settled(&sale).await;
}

const HALF_PASSES: &str = "UPDATE orders SET created_at = created_at - (expires_at - created_at) WHERE sale_id = $1";

/// A cancellation that is late, or after a failed payment, counts as a lapse. An early cancellation does not count.
#[tokio::test(flavor = "multi_thread")]
async fn kept_and_not_paid_is_what_counts() {
    let (system, sale) = System::selling(NewSale { pay_within_ms: 600_000, ..terms(3) }).await;
    let keep = async |user: &str, half_passes: bool, fails: bool| {
        let order = order(&system, &sale, user).await;
        if fails {
            let payment = pay(&system, order, user).await;
            assert_eq!(Callback::of("payment.failed", payment, ("order_id", order), 100).send(&system).await, 200);
        }
        if half_passes {
            system.change(HALF_PASSES, &sale).await;
        }
        assert_eq!(system.post(&format!("/api/v1/orders/{order}/cancel"), user).await.0, 200);
        system.left(&sale, 3).await;
        system.settled(&sale).await;
    };
    for _ in 0..2 {
        keep("soon", false, false).await;
        keep("late", true, false).await;
        keep("unable", false, true).await;
    }
    for user in ["late", "unable"] {
        assert_waits(&system.buy(&sale, user).send().await);
    }
    assert_eq!(system.buy(&sale, "soon").send().await.code(), "202");
    system.settled(&sale).await;
}

/// The wait ends, and each further lapse begins another. A Redis that has forgotten everything gets both back.
#[tokio::test(flavor = "multi_thread")]
async fn the_wait_ends_by_itself_and_not_with_the_memory_of_redis() {
    let redis = OwnRedis::start().await;
    let limits = [("SECKILL_PURCHASE__LAPSE_WAIT_MS", "3600000"), ("SECKILL_PURCHASE__BUYER_LIMIT", "-1")];
    let system = System::start_with(&[&limits[..], &[("REDIS_URL", &redis.url())]].concat()).await;
    let sale = system.create_sale(NewSale { pay_within_ms: 600_000, ..terms(3) }).await;
    for _ in 0..2 {
        let_one_lapse(&system, &sale, "hoarder", "10.3.0.1").await;
    }
    redis.ask(&["FLUSHALL"]).await.unwrap();
    let served = async || system.buy(&sale, "hoarder").answered().await.code();
    assert_eq!(served().await, "429 quota-exceeded");
    let later = "UPDATE lapsed_holds SET lapsed_at = lapsed_at - interval '2 hours' WHERE sale_id = $1";
    system.change(later, &sale).await;
    redis.ask(&["FLUSHALL"]).await.unwrap();
    assert_eq!(served().await, "202");
    system.settled(&sale).await;
    system.let_deadlines_pass(&sale).await;
    system.left(&sale, 3).await;
    system.settled(&sale).await;
    assert_eq!(system.buy(&sale, "hoarder").send().await.code(), "429 quota-exceeded");
    system.finish().await;
}
