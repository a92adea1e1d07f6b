//! F12: services with clocks that are an hour off, in either direction. The database's time and Redis's time decide everything.

use seckill_domain::sale::NewSale;
use serde_json::json;

use crate::flow::permits_and_policies::{Caller, a_day, policy, set};
use crate::network::service_killed::Process;
use seckill_harness::folder::free_address;
use seckill_harness::{System, terms, until};

#[tokio::test(flavor = "multi_thread")]
async fn services_an_hour_off_do_nothing_wrong() {
    let system = System::prepare(&[]).await;
    let both = [free_address(), free_address()];
    let late = Process::start_wrong(&system, both[0], "+1h").ready(both[0]).await;
    let early = Process::start_wrong(&system, both[1], "-1h").ready(both[1]).await;

    // Deadlines: no deadline is an hour off, and a second is a second.
    let sale = system.create_sale(terms(20)).await;
    let short = system.create_sale(NewSale { pay_within_ms: 2_000, ..terms(5) }).await;
    for (n, at) in both.into_iter().cycle().take(8).enumerate() {
        assert_eq!(system.buy_at(at, &sale, &format!("u{n}")).send().await.code(), "202");
    }
    assert_eq!(system.buy_at(both[0], &short, "ann").send().await.code(), "202");
    assert_eq!(system.buy_at(both[1], &short, "ben").send().await.code(), "202");
    let ended = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'cancelled'";
    until(2, || system.count(ended, &short)).await;
    let early_or_late = "SELECT count(*) FROM orders WHERE sale_id = $1 AND updated_at NOT BETWEEN expires_at AND expires_at + interval '10 minutes'";
    assert_eq!(system.count(early_or_late, &short).await, 0);
    system.settled(&sale).await;
    let alive = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'pending_payment'";
    assert_eq!(system.count(alive, &sale).await, 8, "no mass expiry");

    for at in both {
        for (seconds, code) in [(1_800, "409 already-purchased"), (-1_800, "401 unauthenticated")] {
            let mut click = system.buy_at(at, &sale, "u0");
            click.token = Some(system.token_for("u0", 0, seconds));
            assert_eq!(click.send().await.code(), code, "{seconds}");
        }
    }

    // I7: one limit at both instances.
    let mut shop = Caller::at(&system, "shop", both[0]).await;
    set(&system, policy("shop", "login", a_day(7))).await;
    set(&system, policy("seckill", "purchase-buyer", a_day(5))).await;
    // On a busy machine Redis may not answer the limiter in time. Such a call may have cost a permit.
    let (mut granted, mut unanswered, mut asked) = (0, 0, 0);
    for at in both.into_iter().cycle().take(20) {
        shop.at = at;
        let answer = shop.ask(json!({ "app": "shop", "policy": "login" })).await;
        granted += i64::from(answer["code"] == 1);
        unanswered += i64::from(answer["reason"] == "limiter-down");
        // A 503 does not count against the limit.
        asked += i64::from([202, 409].contains(&system.buy_at(at, &sale, "eve").send().await.status));
    }
    assert!((7 - unanswered..=7).contains(&granted), "{granted} granted, {unanswered} calls unanswered");
    assert_eq!(asked, 5);
    early.end();
    late.end();
    system.finish().await;
}
