//! Every named place on the way of money: the process dies exactly there, is started again, and the books hold.

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::Client;
use serde_json::{Value, json};

use crate::world::{Rates, World};
use seckill_harness::System;

const ORDERS: usize = 12;
/// How long a process may take to come to the place.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who passes a place, and what makes him.
struct Place {
    name: &'static str,
    role: &'static str,
    /// Passes before the one that kills.
    passes: u32,
    switches: Value,
}

fn places() -> Vec<Place> {
    let place = |name, role, passes| Place { name, role, passes, switches: json!({}) };
    vec![
        // Who comes together is written down together, and may be claimed at once.
        place("pay.before_commit", "serve", 0),
        place("pay.after_commit", "serve", 0),
        place("pay.claimed", "work", 0),
        place("pay.sent", "work", 3),
        place("pay.settled", "work", 3),
        Place { switches: json!({ "drop_callbacks_permille": 1000 }), ..place("status.answered", "work", 2) },
        place("money.before_commit", "serve", 3),
        place("money.after_commit", "serve", 3),
        place("refund.before_commit", "serve", 2),
        place("refund.after_commit", "serve", 2),
        place("refunded.before_commit", "serve", 2),
        place("refunded.after_commit", "serve", 2),
    ]
}

/// A process of ours, killed when it is dropped.
struct Process(Child);

impl Process {
    fn start(system: &System, role: &str, at: SocketAddr, dies_at: Option<&str>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
        command.arg(role).env_clear().envs(&system.environment).env("SECKILL_HTTP__BIND", at.to_string());
        command.env("RUST_LOG", "off").envs(dies_at.map(|place| ("FAILPOINTS", place)));
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }

    fn has_died(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_on_any_line_leaves_the_books_whole() {
    let only = std::env::var("SECKILL_TEST_PLACE").ok();
    for place in places().into_iter().filter(|place| only.as_ref().is_none_or(|only| only == place.name)) {
        die_at(&place).await;
        eprintln!("{}: held", place.name);
    }
}

async fn die_at(place: &Place) {
    // The bank calls back the process that may die.
    let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let world = World::called_back_at(Some(at), ORDERS, &Rates { pay: 1_000, refund: 50 }, false, &[]).await;
    world.bank.switch(place.switches.clone()).await;
    let deadly = match place.passes {
        0 => format!("{}=return", place.name),
        passes => format!("{}={passes}*off->return", place.name),
    };
    let start = |role: &str| Process::start(&world.system, role, at, (role == place.role).then_some(&*deadly));
    let (mut serve, mut work) = (start("serve"), start("work"));
    let buyers = join_all((0..ORDERS).map(|buyer| buy(&world, at, buyer)));
    let killing = async {
        let begun = Instant::now();
        let victim = if place.role == "serve" { &mut serve } else { &mut work };
        while !victim.has_died() {
            assert!(begun.elapsed() < PATIENCE, "{} was not passed", place.name);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        *victim = Process::start(&world.system, place.role, at, None);
    };
    tokio::join!(buyers, killing);
    world.money_rests().await;
    assert_eq!(usize::try_from(world.count("SELECT count(*) FROM payments WHERE pays").await), Ok(ORDERS));
    assert_eq!(
        usize::try_from(world.count("SELECT count(*) FROM orders WHERE status = 'refunded'").await),
        Ok(ORDERS / 2)
    );
    assert_eq!(world.bank.books().await.1, ORDERS / 2, "each refund once");
    world.audited().await;
    drop((serve, work));
}

/// Pays, and every other one wants the money back; asks again whenever there is no answer.
async fn buy(world: &World, at: SocketAddr, buyer: usize) {
    insist(world, at, buyer, "payments", json!({ "channel": "sandbox" })).await;
    if buyer.is_multiple_of(2) {
        insist(world, at, buyer, "refunds", json!({ "reason": "" })).await;
    }
}

/// Until it is done: 202, or what comes after it.
async fn insist(world: &World, at: SocketAddr, buyer: usize, what: &str, body: Value) {
    let http = Client::new();
    let url = format!("http://{at}/api/v1/orders/{}/{what}", world.orders[buyer]);
    let wanted: &[&str] = if what == "payments" { &["paid"] } else { &["refunding", "refunded"] };
    let begun = Instant::now();
    loop {
        let token = world.system.token(&format!("u{buyer}"), 0);
        let _ = http.post(&url).bearer_auth(token).json(&body).send().await;
        let status: String = sqlx::query_scalar("SELECT status FROM orders WHERE id = $1")
            .bind(world.orders[buyer])
            .fetch_one(&world.system.sql)
            .await
            .unwrap();
        if wanted.contains(&status.as_str()) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE * 2, "{what} of u{buyer}: {status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
