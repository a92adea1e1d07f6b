//! No unit too many is sold, and returned units are sold again.

use std::collections::HashSet;

use futures_util::future::join_all;
use serde_json::json;

use seckill_domain::ids::Units;
use seckill_domain::sale::NewSale;
use seckill_harness::{Answer, Sale, System, eventually, terms, until};

use crate::buying::purchase_limits::answered;

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_at_two_instances_gets_exactly_the_stock() {
    let mut system = System::start().await;
    system.serve(false).await;
    let sale = system.create_sale(terms(100)).await;
    let users: Vec<String> = (0..600).map(|n| format!("u{n}")).collect();
    let clicks = users.iter().enumerate().map(|(n, user)| {
        let click = system.buy_at(system.instances[n % 2].address, &sale, user).idempotent("k");
        answered(click.from(&format!("10.0.{}.{}", n / 250, n % 250)))
    });
    let answers: Vec<Answer> = join_all(clicks).await;
    let winners: HashSet<String> = answers.iter().filter(|a| a.status == 202).map(Answer::order_id).collect();
    assert_eq!(winners.len(), 100);
    assert!(answers.iter().all(|a| ["202", "409 sold-out"].contains(&a.code().as_str())));
    system.settled(&sale).await;
    assert_eq!(
        (system.stock(&sale).await, system.available(&sale).await, system.orders(&sale).await),
        (0, Some(0), 100)
    );

    // A winner who repeats, at either instance, never gets "sold out". A loser does.
    for (user, before) in users.iter().zip(&answers).step_by(7) {
        for instance in &system.instances {
            let again = answered(system.buy_at(instance.address, &sale, user).idempotent("k")).await;
            assert_eq!(again.code(), before.code());
            assert!(again.status != 202 || again.order_id() == before.order_id());
        }
    }
    system.finish().await;
}

/// The next buyer of the only unit, and the order. Both instances are asked repeatedly, so the one that does not sell the unit has just
/// learnt that none is left. Each request comes from another buyer, so no buyer's limit is used up.
async fn next_buyer(system: &System, sale: &Sale) -> (String, String) {
    eventually(|| async {
        for instance in &system.instances {
            let user = format!("c{}", uuid::Uuid::new_v4().simple());
            let answer = answered(system.buy_at(instance.address, sale, &user).idempotent("k")).await;
            if answer.status == 202 {
                return Ok((user, answer.order_id()));
            }
        }
        Err("sold out".to_owned())
    })
    .await
}

/// The unit of a cancelled order is sold to another buyer within a second.
async fn handed_on(system: &System, sale: &Sale) -> (String, String) {
    let order = answered(system.buy(sale, "ann").idempotent("k")).await.order_id();
    system.settled(sale).await;
    // Both instances now remember that it is sold out.
    for instance in &system.instances {
        assert_eq!(answered(system.buy_at(instance.address, sale, "bob")).await.code(), "409 sold-out");
    }
    assert_eq!(system.post(&format!("/api/v1/orders/{order}/cancel"), "bob").await.0, 404);
    let (status, cancelled) = system.post(&format!("/api/v1/orders/{order}/cancel"), "ann").await;
    assert_eq!((status, &cancelled["status"], &cancelled["reason"]), (200, &json!("cancelled"), &json!("by-buyer")));
    let (status, problem) = system.post(&format!("/api/v1/orders/{order}/cancel"), "ann").await;
    assert_eq!((status, &problem["code"]), (409, &json!("illegal-state")));

    let began = std::time::Instant::now();
    let next = next_buyer(system, sale).await;
    // A second is promised; the rest is slack for a busy machine.
    assert!(began.elapsed().as_secs() < 30, "it took {:?}", began.elapsed());
    assert_ne!(next.1, order);
    system.settled(sale).await;
    // Her key still names her ended order, despite later sales.
    let repeat = system.buy(sale, "ann").idempotent("k").send().await;
    assert_eq!((repeat.code(), repeat.order_id(), &repeat.body["status"]), ("202".into(), order, &json!("cancelled")));
    assert_eq!((system.stock(sale).await, system.available(sale).await), (0, Some(0)));
    next
}

#[tokio::test(flavor = "multi_thread")]
async fn who_bought_a_returned_unit_elsewhere_is_never_told_that_it_is_sold_out() {
    let mut system = System::start().await;
    system.serve(false).await;
    let sale = system.create_sale(terms(1)).await;
    let (mut holder, mut order) = handed_on(&system, &sale).await;
    for round in 0..8 {
        system.settled(&sale).await;
        until(200, || async { system.post(&format!("/api/v1/orders/{order}/cancel"), &holder).await.0 }).await;
        (holder, order) = next_buyer(&system, &sale).await;
        for instance in &system.instances {
            let repeat = answered(system.buy_at(instance.address, &sale, &holder).idempotent("k")).await;
            assert_eq!((repeat.code(), repeat.order_id()), ("202".into(), order.clone()), "round {round}");
        }
    }
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_large_a_wish_is_no_sold_out_for_others() {
    let (system, sale) = System::selling(NewSale { per_user: Units::parse(5).unwrap(), ..terms(3) }).await;
    let five = json!({ "key": sale.key, "quantity": 5 });
    assert_eq!(system.buy(&sale, "greedy").body(&five).send().await.code(), "409 sold-out");
    assert_eq!(system.buy(&sale, "modest").send().await.code(), "202");
    system.settled(&sale).await;
    assert_eq!(system.available(&sale).await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unlimited_sale_keeps_no_stock() {
    let (system, sale) = System::selling(terms(-1)).await;
    let users: Vec<String> = (0..40).map(|n| format!("u{n}")).collect();
    let answers = join_all(users.iter().map(|user| answered(system.buy(&sale, user).idempotent("k")))).await;
    assert!(answers.iter().all(|answer| answer.status == 202));
    system.settled(&sale).await;
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (-1, None));
    let order = answers[0].order_id();
    assert_eq!(system.post(&format!("/api/v1/orders/{order}/cancel"), "u0").await.0, 200);
    system.settled(&sale).await;
    assert_eq!(system.stock(&sale).await, -1);
}
