//! The limits of purchases per buyer, per address and per sale. All are checked before any is counted.

use futures_util::future::join_all;

use seckill_harness::{Answer, Click, System, terms};

/// Few requests from one address and of one sale, in windows that outlast the tests.
pub const FEW: [(&str, &str); 5] = [
    ("SECKILL_PURCHASE__ADDRESS_LIMIT", "2"),
    ("SECKILL_PURCHASE__ADDRESS_WINDOW_MS", "86400000"),
    ("SECKILL_PURCHASE__BUYER_WINDOW_MS", "86400000"),
    ("SECKILL_PURCHASE__SALE_LIMIT", "12"),
    ("SECKILL_PURCHASE__SALE_WINDOW_MS", "86400000"),
];

/// Repeats a purchase while the shop is closed, as it may be for a moment on a busy machine. Such a refusal is not counted.
pub async fn answered(click: Click<'_>) -> Answer {
    click.answered().await
}

/// Makes a purchase that is accepted, and returns whether the first try succeeded. A test counts these to prove that purchases are not
/// disturbed: on a busy machine the shop may be closed for a moment, but not for most purchases.
pub async fn accepted_at_once(click: Click<'_>) -> bool {
    if click.clone().send().await.code() == "202" {
        return true;
    }
    assert_eq!(answered(click).await.code(), "202");
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_has_five_requests_a_minute_and_a_hundred_repeats_are_one_purchase() {
    let (system, sale) = System::selling(terms(5)).await;
    let answers = join_all((0..100).map(|_| answered(system.buy(&sale, "ann").idempotent("k")))).await;
    let accepted: Vec<_> = answers.iter().filter(|answer| answer.status == 202).collect();
    // A new minute may begin between the requests, at most once, and before any of them.
    assert!((5..=10).contains(&accepted.len()), "{}", accepted.len());
    assert!(accepted.iter().all(|answer| answer.order_id() == accepted[0].order_id()));
    for refused in answers.iter().filter(|answer| answer.status != 202) {
        assert_eq!(refused.code(), "429 quota-exceeded");
        let retry: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=60).contains(&retry));
        assert_eq!(refused.headers["ratelimit-policy"], "\"buyer\";q=5;w=60");
        assert!(refused.headers["ratelimit"].to_str().unwrap().starts_with("\"buyer\";r=0;t="));
    }
    system.settled(&sale).await;
    assert_eq!((system.stock(&sale).await, system.orders(&sale).await), (4, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_refused_by_one_limit_uses_up_nothing_of_another() {
    let system = System::shared_with(&FEW).await;
    let sale = system.create_sale(terms(50)).await;
    let from = |user: &'static str, address: &'static str| system.buy(&sale, user).from(address).send();
    assert_eq!(from("ann", "9.9.9.9").await.code(), "202");
    assert_eq!(from("bob", "9.9.9.9").await.code(), "202");
    for _ in 0..10 {
        let refused = from("eve", "9.9.9.9").await;
        assert_eq!(refused.code(), "429 quota-exceeded");
        assert!(refused.headers["ratelimit"].to_str().unwrap().starts_with("\"address\""));
    }
    // From other addresses, all five of the buyer's requests are left.
    let elsewhere = ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4", "1.1.1.5", "1.1.1.6"];
    let answers = join_all(elsewhere.map(|address| answered(system.buy(&sale, "eve").from(address)))).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 429).count(), 1, "{answers:?}");
    // An IPv6 /64 counts as one address.
    assert_eq!(from("v61", "2001:db8::1").await.code(), "202");
    assert_eq!(from("v62", "2001:db8::ffff").await.code(), "202");
    assert_eq!(from("v63", "2001:db8::2:1").await.code(), "429 quota-exceeded");
    assert_eq!(from("v63", "2001:db8:0:1::1").await.code(), "202");
    system.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_counts_in_whatever_form_a_proxy_writes_it() {
    let system = System::shared_with(&FEW).await;
    let sale = system.create_sale(terms(50)).await;
    let from = |user: &'static str, address: &'static str| system.buy(&sale, user).from(address).send();
    assert_eq!(from("v71", "[2001:db8:7::1]:50007").await.code(), "202");
    assert_eq!(from("v72", "2001:DB8:7:0::2%eth0").await.code(), "202");
    assert_eq!(from("v73", "\"[2001:db8:7::3]\"").await.code(), "429 quota-exceeded");
    assert_eq!(from("v81", "203.0.113.7:50007").await.code(), "202");
    assert_eq!(from("v82", "2002:cb00:7107::1").await.code(), "202");
    assert_eq!(from("v83", "203.0.113.7").await.code(), "429 quota-exceeded");
    assert_eq!(from("v83", "64:ff9b::203.0.113.8").await.code(), "202");
    // A hop that is no address counts as the proxy that names it.
    assert_eq!(from("v91", "203.0.113.9, unknown").await.code(), "202");
    assert_eq!(from("v92", "203.0.113.10, _hidden").await.code(), "202");
    assert_eq!(from("v93", "203.0.113.11, 127.0.0.1").await.code(), "202");
    assert_eq!(from("v94", "127.0.0.1").await.code(), "429 quota-exceeded");
    system.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sale_itself_has_a_limit() {
    let system = System::shared_with(&FEW).await;
    let sale = system.create_sale(terms(50)).await;
    let callers: Vec<_> = (0..25).map(|n| (format!("u{n}"), format!("10.8.0.{n}"))).collect();
    let clicks = callers.iter().map(|(user, address)| answered(system.buy(&sale, user).from(address)));
    let answers = join_all(clicks).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 202).count(), 12);
    system.settled(&sale).await;
    assert_eq!(system.stock(&sale).await, 38);
}
