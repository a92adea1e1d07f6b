//! Cancellations that arrive together are served together, and do not affect each other.

use futures_util::future::join_all;
use seckill_harness::{System, terms};

/// Forty-eight at once. Among them: a locked order, an order of another buyer, a repeated request, and a missing order.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_cancel_at_once_have_an_answer_each() {
    let system = System::start().await;
    let sale = system.create_sale(terms(100)).await;
    let users: Vec<String> = (0..50).map(|n| format!("u{n}")).collect();
    let bought = join_all(users.iter().map(|user| system.buy(&sale, user).send())).await;
    let orders: Vec<String> = bought.iter().map(|answer| answer.order_id()).collect();
    system.settled(&sale).await;
    let mut blocker = system.sql.begin().await.unwrap();
    let lock =
        sqlx::query("SELECT FROM orders WHERE id = $1 FOR UPDATE").bind(orders[49].parse::<uuid::Uuid>().unwrap());
    lock.execute(&mut *blocker).await.unwrap();
    let cancel = async |order: &str, user: &str| system.post(&format!("/api/v1/orders/{order}/cancel"), user).await;
    let unlocked = join_all(orders[..48].iter().zip(&users).map(|(order, user)| cancel(order, user)));
    let (locked, unlocked, foreign, unknown) = tokio::join!(
        cancel(&orders[49], &users[49]),
        unlocked,
        cancel(&orders[48], "somebody"),
        cancel("00000000-0000-4000-8000-000000000000", "u0"),
    );
    assert!(unlocked.iter().all(|(status, body)| *status == 200 && body["status"] == "cancelled"), "{unlocked:?}");
    assert_eq!((locked.0, foreign.0, unknown.0), (503, 404, 404), "{locked:?}");
    blocker.rollback().await.unwrap();
    let (again, unlocked) = (cancel(&orders[0], "u0").await, cancel(&orders[49], "u49").await);
    assert_eq!((again.0, unlocked.0), (409, 200), "{again:?}");
    system.left(&sale, 99).await;
    system.settled(&sale).await;
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_is_locked_keeps_the_cancellations_of_no_other() {
    let system = System::start().await;
    let sales = join_all((0..4).map(|_| system.create_sale(terms(10)))).await;
    let bought = join_all(sales.iter().map(|sale| system.buy(sale, "ann").send())).await;
    join_all(sales.iter().map(|sale| system.settled(sale))).await;
    let mut blocker = system.sql.begin().await.unwrap();
    sqlx::query("SELECT FROM sales WHERE id = $1 FOR UPDATE")
        .bind(sales[0].id.get())
        .execute(&mut *blocker)
        .await
        .unwrap();
    let paths: Vec<String> =
        bought.iter().map(|answer| format!("/api/v1/orders/{}/cancel", answer.order_id())).collect();
    let answers = join_all(paths.iter().map(|path| system.post(path, "ann"))).await;
    let answers: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
    assert_eq!(answers, [503, 200, 200, 200]);
    blocker.rollback().await.unwrap();
    assert_eq!(system.post(&paths[0], "ann").await.0, 200);
    for sale in &sales {
        system.left(sale, 10).await;
        system.settled(sale).await;
    }
    system.finish().await;
}

#[cfg(feature = "failpoints")]
#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_any_failpoint_cancels_each_order_once() {
    use crate::network::service_killed::Process;
    use seckill_harness::{eventually, folder::free_address};
    use std::process::Stdio;

    for place in ["cancel.before_commit", "cancel.after_commit"] {
        let system = System::prepare(&[]).await;
        let address = free_address();
        let dies = format!("{place}=return");
        let mut victim =
            Process::start_with(&system, address, &[("FAILPOINTS", &dies)], Stdio::null()).ready(address).await;
        let sale = system.create_sale(terms(20)).await;
        let users: Vec<String> = (0..10).map(|n| format!("u{n}")).collect();
        let bought = join_all(users.iter().map(|user| system.buy_at(address, &sale, user).send())).await;
        system.settled(&sale).await;
        let cancel = async |order: String, user: &str| {
            let path = format!("http://{address}/api/v1/orders/{order}/cancel");
            let answer = seckill_harness::http_client().post(path).bearer_auth(system.token(user, 0)).send().await;
            answer.map(|answer| answer.status().as_u16()).unwrap_or(0)
        };
        join_all(bought.iter().zip(&users).map(|(answer, user)| cancel(answer.order_id(), user))).await;
        eventually(|| {
            let ended = victim.has_ended();
            async move { ended.then_some(()).ok_or_else(|| format!("{place} was not passed")) }
        })
        .await;
        let _heir = Process::start_with(&system, address, &[], Stdio::null()).ready(address).await;
        for (answer, user) in bought.iter().zip(&users) {
            assert!([200, 409].contains(&cancel(answer.order_id(), user).await), "{place}");
        }
        system.left(&sale, 20).await;
        system.settled(&sale).await;
        system.finish().await;
    }
}
