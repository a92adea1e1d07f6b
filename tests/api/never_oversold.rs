//! Never a unit too many, and what comes back is sold again.

use std::collections::HashSet;

use futures_util::future::join_all;
use serde_json::json;

use seckill::domain::ids::Units;
use seckill::domain::sale::NewSale;
use seckill_harness::{Answer, Click, System, eventually, terms};

/// The first answer other than 503, which a busy machine may give.
async fn answered(click: Click<'_>) -> Answer {
    eventually(|| async {
        let answer = click.clone().send().await;
        if answer.status == 503 { Err(answer.code()) } else { Ok(answer) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_at_two_instances_gets_exactly_the_stock() {
    let mut system = System::start().await;
    system.serve(false).await;
    let sale = system.create_sale(terms(100)).await;
    let users: Vec<String> = (0..600).map(|n| format!("u{n}")).collect();
    let clicks = users.iter().enumerate().map(|(n, user)| {
        let mut click = system.buy(&sale, user).idempotent("k").from(&format!("10.0.{}.{}", n / 250, n % 250));
        click.at = system.instances[n % 2].address;
        answered(click)
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

    // A winner who asks again, at either instance, is never told that it is sold out; a loser is.
    for (user, before) in users.iter().zip(&answers).step_by(7) {
        for instance in &system.instances {
            let mut click = system.buy(&sale, user).idempotent("k");
            click.at = instance.address;
            let again = answered(click).await;
            assert_eq!(again.code(), before.code());
            assert!(again.status != 202 || again.order_id() == before.order_id());
        }
    }
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_ends_gives_its_unit_to_somebody_else_within_a_second() {
    let mut system = System::start().await;
    system.serve(false).await;
    let sale = system.create_sale(terms(1)).await;
    let order = answered(system.buy(&sale, "ann").idempotent("k")).await.order_id();
    system.settled(&sale).await;
    // Both instances now remember that it is sold out.
    for instance in &system.instances {
        let mut click = system.buy(&sale, "bob");
        click.at = instance.address;
        assert_eq!(answered(click).await.code(), "409 sold-out");
    }
    assert_eq!(system.post(&format!("/api/v1/orders/{order}/cancel"), "bob").await.0, 404);
    let (status, cancelled) = system.post(&format!("/api/v1/orders/{order}/cancel"), "ann").await;
    assert_eq!((status, &cancelled["status"], &cancelled["reason"]), (200, &json!("cancelled"), &json!("by-buyer")));
    let (status, problem) = system.post(&format!("/api/v1/orders/{order}/cancel"), "ann").await;
    assert_eq!((status, &problem["code"]), (409, &json!("illegal-state")));

    let began = std::time::Instant::now();
    // Different losers, so that nobody's limit is used up.
    let winner = eventually(|| async {
        let answer = system.buy(&sale, &format!("c{}", began.elapsed().as_micros())).idempotent("k").send().await;
        if answer.status == 202 { Ok(answer) } else { Err(answer.code()) }
    })
    .await;
    // A second is promised; the rest is slack for a busy machine.
    assert!(began.elapsed().as_secs() < 30, "it took {:?}", began.elapsed());
    assert_ne!(winner.order_id(), order);
    system.settled(&sale).await;
    // Her key still names her ended order, whatever was sold since.
    let repeat = system.buy(&sale, "ann").idempotent("k").send().await;
    assert_eq!((repeat.code(), repeat.order_id(), &repeat.body["status"]), ("202".into(), order, &json!("cancelled")));
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (0, Some(0)));
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_bought_a_returned_unit_elsewhere_is_never_told_that_it_is_sold_out() {
    let mut system = System::start_with(&[("SECKILL_PURCHASE__BUYER_LIMIT", "-1")]).await;
    system.serve(false).await;
    let sale = system.create_sale(terms(1)).await;
    let mut holder = ("first".to_owned(), answered(system.buy(&sale, "first").idempotent("k")).await.order_id());
    for round in 0..8 {
        system.settled(&sale).await;
        eventually(|| async {
            let (status, body) = system.post(&format!("/api/v1/orders/{}/cancel", holder.1), &holder.0).await;
            (status == 200).then_some(()).ok_or_else(|| format!("{status} {body}"))
        })
        .await;
        // Both instances are asked again and again, so that the one that does not sell the unit has only just heard
        // that there is none.
        let clicks = [format!("near{round}"), format!("far{round}")];
        holder = eventually(|| async {
            for (user, instance) in clicks.iter().zip(&system.instances) {
                let mut click = system.buy(&sale, user).idempotent("k");
                click.at = instance.address;
                let answer = click.send().await;
                if answer.status == 202 {
                    return Ok((user.clone(), answer.order_id()));
                }
            }
            Err("sold out".to_owned())
        })
        .await;
        for instance in &system.instances {
            let mut repeat = system.buy(&sale, &holder.0).idempotent("k");
            repeat.at = instance.address;
            let repeat = answered(repeat).await;
            assert_eq!((repeat.code(), repeat.order_id()), ("202".into(), holder.1.clone()), "round {round}");
        }
    }
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_large_a_wish_is_no_sold_out_for_others() {
    let system = System::start().await;
    let sale = system.create_sale(NewSale { per_user: Units::parse(5).unwrap(), ..terms(3) }).await;
    let five = json!({ "key": sale.key, "quantity": 5 });
    assert_eq!(system.buy(&sale, "greedy").body(&five).send().await.code(), "409 sold-out");
    assert_eq!(system.buy(&sale, "modest").send().await.code(), "202");
    system.settled(&sale).await;
    assert_eq!(system.available(&sale).await, Some(2));
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unlimited_sale_keeps_no_stock() {
    let system = System::start().await;
    let sale = system.create_sale(terms(-1)).await;
    let users: Vec<String> = (0..40).map(|n| format!("u{n}")).collect();
    let answers = join_all(users.iter().map(|user| answered(system.buy(&sale, user).idempotent("k")))).await;
    assert!(answers.iter().all(|answer| answer.status == 202));
    system.settled(&sale).await;
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (-1, None));
    let order = answers[0].order_id();
    assert_eq!(system.post(&format!("/api/v1/orders/{order}/cancel"), "u0").await.0, 200);
    system.settled(&sale).await;
    assert_eq!(system.stock(&sale).await, -1);
    system.finish().await;
}
