//! Kills a process at each failpoint on the path of a payment or refund, and starts the process again. The books must hold.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::Client;
use serde_json::{Value, json};

use crate::world::{Rates, World, room};
use seckill_harness::System;
use seckill_harness::folder::free_address;
use seckill_harness::running::Running;

const ORDERS: usize = 12;
/// How long a process may take to reach the failpoint.
const REACHED_WITHIN: Duration = Duration::from_secs(60);

/// A failpoint, the process that reaches the failpoint, and the switches that make the process reach it.
struct Place {
    name: &'static str,
    role: &'static str,
    /// How many times the process passes the failpoint before it dies there.
    passes: u32,
    switches: Value,
    price_cents: i64,
}

fn places() -> Vec<Place> {
    let place = |name, role, passes| Place { name, role, passes, switches: json!({}), price_cents: 100 };
    vec![
        // Requests that arrive together are written together, and may be claimed together, so there may be only one pass.
        place("pay.before_commit", "serve", 0),
        place("pay.after_commit", "serve", 0),
        place("pay.claimed", "work", 0),
        place("pay.sent", "work", 3),
        place("pay.settled", "work", 3),
        Place { switches: json!({ "drop_callbacks_permille": 1000 }), ..place("status.answered", "work", 2) },
        place("paid.before_commit", "serve", 0),
        place("paid.after_commit", "serve", 0),
        // A result other than success is processed alone. The bank declines every payment until then. Afterwards the buyers pay again.
        Place { switches: json!({ "decline_permille": 1000 }), ..place("money.before_commit", "serve", 2) },
        Place { switches: json!({ "decline_permille": 1000 }), ..place("money.after_commit", "serve", 2) },
        place("refund.before_commit", "serve", 2),
        place("refund.after_commit", "serve", 2),
        place("refunded.before_commit", "serve", 2),
        place("refunded.after_commit", "serve", 2),
        // Orders that cost nothing are paid and refunded in one transaction, without the bank.
        Place { price_cents: 0, ..place("pay.before_commit", "serve", 0) },
        Place { price_cents: 0, ..place("pay.after_commit", "serve", 0) },
        Place { price_cents: 0, ..place("refund.before_commit", "serve", 2) },
        Place { price_cents: 0, ..place("refund.after_commit", "serve", 2) },
    ]
}

/// A `seckill` process.
fn start(system: &System, role: &str, at: SocketAddr, dies_at: Option<&str>) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
    command.arg(role).env_clear().envs(&system.environment).env("SECKILL_HTTP__BIND", at.to_string());
    command.env("RUST_LOG", "off").envs(dies_at.map(|place| ("FAILPOINTS", place)));
    Running::start(command.stdout(Stdio::null()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_any_failpoint_leaves_the_books_correct() {
    for place in places() {
        die_at(&place).await;
        eprintln!("{} at {}: the books hold", place.name, place.price_cents);
    }
}

async fn die_at(place: &Place) {
    // The bank calls back the process that may die.
    let at = free_address();
    let world =
        World::in_room(room(), Some(at), (ORDERS, place.price_cents), &Rates { pay: 1_000, refund: 50 }, false, &[])
            .await;
    world.bank.switch(place.switches.clone()).await;
    let failpoint = match place.passes {
        0 => format!("{}=return", place.name),
        passes => format!("{}={passes}*off->return", place.name),
    };
    let run = |role: &str| start(&world.system, role, at, (role == place.role).then_some(&*failpoint));
    let (mut serve, mut work) = (run("serve"), run("work"));
    let buyers = join_all((0..ORDERS).map(|buyer| buy(&world, at, buyer)));
    let killing = async {
        let begun = Instant::now();
        let victim = if place.role == "serve" { &mut serve } else { &mut work };
        while !victim.has_ended() {
            assert!(begun.elapsed() < REACHED_WITHIN, "no process reached {}", place.name);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        world.bank.switch(json!({ "decline_permille": 0 })).await;
        *victim = start(&world.system, place.role, at, None);
    };
    tokio::join!(buyers, killing);
    world.wait_until_money_settles().await;
    let numbers = ["SELECT count(*) FROM payments WHERE pays", "SELECT count(*) FROM orders WHERE status = 'refunded'"];
    for (number, expected) in numbers.into_iter().zip([ORDERS, ORDERS / 2]) {
        assert_eq!(usize::try_from(world.count(number).await), Ok(expected), "{number}");
    }
    let at_the_bank = if place.price_cents == 0 { 0 } else { ORDERS / 2 };
    assert_eq!(world.bank.totals().await.1, at_the_bank, "each refund takes effect once");
    world.finish_and_audit().await;
    drop((serve, work));
}

/// Pays an order, and asks for a refund of every second order. Repeats each request until it has taken effect.
async fn buy(world: &World, at: SocketAddr, buyer: usize) {
    post_until_done(world, at, buyer, "payments", json!({ "channel": "sandbox" })).await;
    if buyer.is_multiple_of(2) {
        post_until_done(world, at, buyer, "refunds", json!({ "reason": "" })).await;
    }
}

/// Repeats a request until the order has the status that follows from the request.
async fn post_until_done(world: &World, at: SocketAddr, buyer: usize, what: &str, body: Value) {
    let http = Client::new();
    let url = format!("http://{at}/api/v1/orders/{}/{what}", world.orders[buyer]);
    let expected: &[&str] = if what == "payments" { &["paid"] } else { &["refunding", "refunded"] };
    let begun = Instant::now();
    loop {
        let token = world.system.token(&format!("u{buyer}"), 0);
        let _ = http.post(&url).bearer_auth(token).json(&body).send().await;
        let status = world.status(buyer).await;
        if expected.contains(&status.as_str()) {
            return;
        }
        assert!(begun.elapsed() < REACHED_WITHIN * 2, "{what} of u{buyer} did not take effect: the order is {status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
