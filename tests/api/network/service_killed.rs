//! The whole service is killed during a rush, and started again (F1 to F3 as they come): every 202 has its order.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use seckill_load::{Buyer, Plan};

use seckill_harness::folder::free_address;
use seckill_harness::running::Running;
use seckill_harness::{Click, Sale, System, eventually, terms, until, wait_until};

/// A service in a process of its own, killed when it is dropped.
pub struct Process(Running);

impl Process {
    fn start(system: &System, address: SocketAddr) -> Self {
        Self::start_with(system, address, &[("RUST_LOG", "error")], Stdio::inherit())
    }

    pub fn work(system: &System, only: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
        command.args(["work", "--only", only]).env_clear().envs(&system.environment).env("RUST_LOG", "error");
        Self(Running::start(command.stdout(Stdio::null())))
    }

    pub fn start_with(system: &System, address: SocketAddr, more: &[(&str, &str)], log: Stdio) -> Self {
        let bind = address.to_string();
        let settings: Vec<_> =
            [("SECKILL_HTTP__BIND", bind.as_str())].into_iter().chain(more.iter().copied()).collect();
        Self::run(system, &["serve", "--with-workers"], &settings, log)
    }

    /// A command of the program that runs until it is ended, with these settings added to the system's.
    pub fn run(system: &System, command: &[&str], more: &[(&str, &str)], log: Stdio) -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_seckill"));
        program.args(command).env_clear().envs(&system.environment).envs(more.iter().copied());
        Self(Running::start(program.stdout(Stdio::null()).stderr(log)))
    }

    /// A service with a clock that is wrong by this offset (`+1h`). Its seconds have the right length.
    pub fn start_wrong(system: &System, address: SocketAddr, offset: &str) -> Self {
        let library = std::fs::read_dir("/usr/lib").unwrap().map(|folder| folder.unwrap().path());
        let library = library.map(|folder| folder.join("faketime/libfaketime.so.1")).find(|file| file.exists());
        let library = library.expect("libfaketime, which ./dev test installs");
        let more = [
            ("LD_PRELOAD", library.to_str().unwrap()),
            ("FAKETIME", offset),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ("RUST_LOG", "error"),
        ];
        Self::start_with(system, address, &more, Stdio::inherit())
    }

    pub async fn ready(self, address: SocketAddr) -> Self {
        let url = format!("http://{address}/readyz");
        eventually(|| async {
            let answer = reqwest::get(&url).await.map_err(|e| e.to_string())?;
            answer.status().is_success().then_some(()).ok_or_else(|| answer.status().to_string())
        })
        .await;
        self
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn end(self) {
        assert!(self.0.end().success());
    }

    #[cfg(feature = "failpoints")]
    pub fn has_ended(&mut self) -> bool {
        self.0.has_ended()
    }
}

/// From now on no purchase can be committed: PostgreSQL refuses every new row of the outbox. The heartbeat adds no row, so the shop stays
/// open, and purchases take stock.
pub async fn refuse_commits(system: &System) {
    system.refuse("INSERT ON outbox", "true").await;
}

pub async fn allow_commits(system: &System) {
    system.allow("outbox").await;
}

/// Sends a purchase that cannot be committed, until it has taken its units in Redis and this many are left. An earlier try may have been
/// refused without a hold, because the shop was closed for a moment.
pub async fn hold_without_commit(system: &System, sale: &Sale, click: &Click<'_>, left: i64) {
    let held = ("503 temporarily-unavailable".to_owned(), Some(left));
    until(held, || async { (click.clone().send().await.code(), system.available(sale).await) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_in_mid_rush_loses_no_winner_and_sells_no_unit_twice() {
    let system = System::prepare(&[]).await;
    let address = free_address();
    let mut process = Process::start(&system, address).ready(address).await;
    let sale = system.create_sale(terms(400)).await;
    // A rush of at least two seconds, with two kills: the first when 40 are sold, the second at 160.
    let plan = Plan {
        base: format!("http://{address}"),
        sale_id: sale.id.get(),
        buyers: 1_200,
        rate: Some(600),
        connections: 64,
        ..Plan::default()
    };
    let buyers = (0..plan.identities()).map(|n| format!("u{n}"));
    let buyers = buyers.map(|user| Buyer { token: system.token(&user, 0), user }).collect();
    let rush = tokio::spawn(async move { seckill_load::run(&plan, buyers, false).await });
    for sold in [40, 160] {
        let rows = "SELECT count(*) FROM purchase_records WHERE sale_id = $1";
        wait_until(|| system.count(rows, &sale), |&rows| rows >= sold).await;
        process.0.kill();
        process = Process::start(&system, address).ready(address).await;
    }
    let report = rush.await.unwrap().unwrap();
    // A buyer gives up after half a minute. A busy machine may need longer to start the service twice, so these buyers repeat once.
    for user in &report.unanswered_users {
        eventually(|| async {
            let answer = system.buy_at(address, &sale, user).try_send().await.map_err(|error| error.to_string())?;
            let code = answer.code();
            ["202", "409 already-purchased", "409 sold-out"].contains(&code.as_str()).then_some(()).ok_or(code)
        })
        .await;
    }
    system.settled(&sale).await;
    assert_eq!(system.stock(&sale).await, 0, "{}", report.render_text());
    assert_eq!(system.orders(&sale).await, 400);
    for accepted in &report.accepted {
        let found: Option<String> = sqlx::query_scalar("SELECT user_id FROM orders WHERE id = $1::uuid")
            .bind(&accepted.order_id)
            .fetch_optional(&system.sql)
            .await
            .unwrap();
        assert_eq!(found.as_deref(), Some(accepted.user.as_str()));
    }
    process.0.kill();
    system.finish().await;
}
