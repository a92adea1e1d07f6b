//! Orders keep the currency of their sale, and orders that cost nothing need no bank.

use seckill_domain::sale::NewSale;
use seckill_harness::{Answer, Sale, System, eventually, terms, until};
use serde_json::{Value, json};
use uuid::Uuid;

use super::payments_and_callbacks::{Callback, becomes, order, pay, post, status};
use crate::pages::served_pages::{page, seckill};

fn free(stock: i64) -> NewSale {
    NewSale { price_cents: 0, ..terms(stock) }
}

/// What everybody is told of an order's amount: its buyer, the shop's people, and the bank.
async fn told(system: &System, sale: &Sale, order: Uuid) -> Vec<Value> {
    let sale_page = page(system, &format!("/sales/{}", sale.id)).await;
    let code = sale_page.split_once("data-currency=\"").unwrap().1.split_once('"').unwrap().0;
    let lines = seckill(system, &["orders", "--sale", &sale.id.to_string(), "--format", "json"]).unwrap();
    let of_sale = seckill(system, &["sale", "show", &sale.id.to_string(), "--format", "json"]).unwrap();
    let payments = seckill(system, &["payments", "list", "--format", "json"]).unwrap();
    let bought = system.get(&format!("/api/v1/orders/{order}"), Some("ann")).await.1;
    let listed = system.get(&format!("/api/v1/orders?sale_id={}", sale.id), Some("ann")).await.1;
    let offered = system.get(&format!("/api/v1/sales/{}", sale.id), None).await.1;
    let each = [&lines[0], &of_sale[0], &payments[0], &bought, &listed[0], &offered];
    each.into_iter().map(|one| one["currency"].clone()).chain([json!(code)]).collect()
}

/// Order of CNY 1.00, and a setting that says JPY from then on.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_keeps_its_currency_when_the_setting_changes() {
    let mut system = System::start().await;
    let sale = system.create_sale(terms(5)).await;
    let early = order(&system, &sale, "ann").await;
    system.stop().await;
    system.environment.insert("SECKILL_PAYMENTS__CURRENCY".into(), "JPY".into());
    system.config.payments.currency = "JPY".parse().unwrap();
    system.serve(true).await;
    let payment = pay(&system, early, "ann").await;
    let all = told(&system, &sale, early).await;
    assert!(all.iter().all(|currency| currency == "CNY"), "{all:?}");
    let mut callback = Callback::of("payment.succeeded", payment, ("order_id", early), 100);
    callback.data["currency"] = json!("JPY");
    assert_eq!(callback.send(&system).await, 422, "the bank has taken another currency");
    callback = Callback::of("payment.succeeded", payment, ("order_id", early), 100);
    assert_eq!(callback.send(&system).await, 200);
    becomes(&system, early, "ann", "paid").await;

    // The setting is for sales that name no currency.
    let new = |more: &[&str]| {
        let words = ["sale", "create", "--product", "Phone", "--price-cents", "100", "--stock", "5"];
        seckill(&system, &[&words, more].concat())
    };
    for (more, currency) in [(&[][..], "JPY"), (&["--currency", "KWD"], "KWD")] {
        let id = new(more).unwrap()["sale_id"].clone();
        assert_eq!(system.get(&format!("/api/v1/sales/{id}"), None).await.1["currency"], currency);
    }
    for wrong in ["cny", "ZZZ", "XAU", ""] {
        assert!(new(&["--currency", wrong]).is_err(), "{wrong}");
    }
    system.settled(&sale).await;
    system.finish().await;
}

async fn begin(system: &System, order: Uuid, user: &str, channel: &str) -> Answer {
    // A payment that comes together with another may be asked to come again.
    eventually(|| async {
        let answer = post(system, order, "payments", user, json!({ "channel": channel })).await;
        if answer.status == 503 { Err(answer.code()) } else { Ok(answer) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_costs_nothing_is_paid_and_refunded_without_a_bank() {
    let system = System::shared().await;
    let sale = system.create_sale(free(2)).await;
    let given = order(&system, &sale, "ann").await;
    assert_eq!(begin(&system, given, "bob", "none").await.code(), "404 unknown-order");
    assert_eq!(begin(&system, given, "ann", "nowhere").await.code(), "400 invalid-request");
    // A lost answer is asked for again.
    let begun = [begin(&system, given, "ann", "none").await, begin(&system, given, "ann", "sandbox").await];
    for answer in &begun {
        assert_eq!((answer.code().as_str(), &answer.body["status"]), ("202", &json!("succeeded")), "{}", answer.body);
    }
    assert_eq!(begun[0].body, begun[1].body);
    assert_eq!(status(&system, given, "ann").await, "paid");
    let asked = "SELECT count(*) FROM outbox WHERE sale_id = $1 AND kind = 'payment_requested'";
    assert_eq!(system.count(asked, &sale).await, 0);

    let refund = post(&system, given, "refunds", "ann", json!({ "reason": "" })).await;
    assert_eq!((refund.code().as_str(), &refund.body["status"]), ("202", &json!("succeeded")));
    assert_eq!(status(&system, given, "ann").await, "refunded");
    assert_eq!(begin(&system, given, "ann", "none").await.code(), "409 illegal-state");
    system.settled(&sale).await;
    until(Some(2), || system.available(&sale)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_order_that_costs_nothing_is_paid_through_no_channel() {
    let system = System::shared().await;
    let (priced, given) = (system.create_sale(terms(1)).await, system.create_sale(free(1)).await);
    let dear = order(&system, &priced, "ann").await;
    assert_eq!(begin(&system, dear, "ann", "none").await.code(), "409 illegal-state");
    assert_eq!(status(&system, dear, "ann").await, "pending_payment");
    // Nothing to pay is no reason to keep the units for ever.
    let late = order(&system, &given, "ann").await;
    system.let_deadlines_pass(&given).await;
    becomes(&system, late, "ann", "cancelled").await;
    assert_eq!(begin(&system, late, "ann", "none").await.code(), "409 illegal-state");
}
