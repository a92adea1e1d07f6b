//! The system under test, its bank, and workers that can be killed.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use reqwest::Client;
use seckill::app::payment_service;
use seckill_domain::sale::NewSale;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use crate::bank::Bank;
use seckill_harness::running::Running;
use seckill_harness::{PATIENCE, Sale, System, eventually, terms};

/// The number of concurrent tests. A test that counts hundreds of a bank's requests in a second runs alone.
const BESIDE: u32 = 3;
static ROOM: Semaphore = Semaphore::const_new(BESIDE as usize);
const CONCURRENCY: usize = 32;

pub fn long() -> bool {
    std::env::var("SECKILL_TEST_LONG").is_ok_and(|long| long == "1")
}

/// The part of the room that a test needs.
pub fn room() -> u32 {
    if long() { BESIDE } else { 1 }
}

/// How much later than the fastest request another one may reach the bank. A busy machine may stand still for most of a second, and then
/// the bank records arrivals late. A long run needs an idle machine.
pub fn jitter_ms() -> u32 {
    if long() { 250 } else { 1_000 }
}

/// Buys a unit, or gets the ticket of the earlier purchase. Repeats while the service is too busy to sell.
pub async fn buy(system: &System, sale: &Sale, user: &str) -> Uuid {
    eventually(|| async {
        let answer = system.buy(sale, user).idempotent("once").send().await;
        if answer.status == 202 { Ok(answer.order_id().parse().unwrap()) } else { Err(answer.code()) }
    })
    .await
}

pub fn worker(system: &System) -> Running {
    worker_with(system, &[])
}

pub fn worker_with(system: &System, settings: &[(&str, &str)]) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
    command.arg("work").env_clear().envs(&system.environment).envs(settings.iter().copied());
    command.env("SECKILL_DATABASE__MAX_CONNECTIONS", "6").env("RUST_LOG", "error");
    Running::start(command.stdout(Stdio::null()))
}

/// The system, the bank, and a sale with all units sold.
pub struct World {
    pub system: System,
    pub bank: Bank,
    pub sale: Sale,
    pub orders: Vec<Uuid>,
    http: Client,
    _room: SemaphorePermit<'static>,
}

/// The rates of the bank and of its channel, per second.
pub struct Rates {
    pub pay: u32,
    pub refund: u32,
}

impl World {
    /// Creates `orders` orders that wait for payment. The service runs in this process, with its workers if `workers` is true.
    pub async fn with_orders(orders: usize, rates: &Rates, workers: bool, settings: &[(&str, &str)]) -> Self {
        Self::in_room(room(), None, (orders, 100), rates, workers, settings).await
    }

    pub async fn alone(orders: usize, rates: &Rates, workers: bool) -> Self {
        Self::in_room(BESIDE, None, (orders, 100), rates, workers, &[]).await
    }

    /// `orders` of a price. With `at`, the bank posts its callbacks to this address.
    pub async fn in_room(
        room: u32,
        at: Option<SocketAddr>,
        (orders, price_cents): (usize, i64),
        rates: &Rates,
        workers: bool,
        settings: &[(&str, &str)],
    ) -> Self {
        let room = ROOM.acquire_many(room).await.unwrap();
        let mut bank = Bank::reserve_address();
        let (url, rate, refund_rate) = (bank.url(), rates.pay.to_string(), rates.refund.to_string());
        let jitter = jitter_ms().to_string();
        let own = [
            ("SECKILL_CHANNELS__SANDBOX__URL", url.as_str()),
            ("SECKILL_CHANNELS__SANDBOX__RATE", &rate),
            ("SECKILL_CHANNELS__SANDBOX__REFUND_RATE", &refund_rate),
            ("SECKILL_CHANNELS__SANDBOX__JITTER_MS", &jitter),
            ("SECKILL_PURCHASE__ADDRESS_LIMIT", "-1"),
            // A refused buyer repeats immediately.
            ("SECKILL_PURCHASE__BUYER_LIMIT", "-1"),
            ("SECKILL_PAYMENTS__ASK_AFTER_MS", "500"),
            ("SECKILL_PAYMENTS__ON_ITS_WAY_MS", "3000"),
        ];
        let mut system = System::prepare(&[&own, settings].concat()).await;
        system.serve(workers).await;
        let at = at.unwrap_or(system.instances[0].address);
        bank.open(&format!("http://{at}/api/v1/payments/callbacks/sandbox"), rates.pay, rates.refund).await;
        let stock = i64::try_from(orders).unwrap();
        let sale = system.create_sale(NewSale { price_cents, pay_within_ms: 900_000, ..terms(stock) }).await;
        let _order_worker = (!workers).then(|| worker(&system));
        let made = stream::iter(0..orders).map(|n| {
            let (system, sale) = (&system, &sale);
            async move { buy(system, sale, &format!("u{n}")).await }
        });
        let made: Vec<Uuid> = made.buffered(CONCURRENCY).collect().await;
        let world = Self { system, bank, sale, orders: made, http: Client::new(), _room: room };
        world.wait_for("SELECT count(*) FROM orders WHERE status = 'pending_payment'", stock).await;
        world
    }

    pub async fn status(&self, buyer: usize) -> String {
        let status = sqlx::query_scalar("SELECT status FROM orders WHERE id = $1").bind(self.orders[buyer]);
        status.fetch_one(&self.system.sql).await.unwrap()
    }

    /// Posts to `/orders/{id}/{what}` as the order's buyer. Returns the status of the answer. Repeats on 503, which a busy machine may
    /// cause.
    pub async fn post(&self, buyer: usize, what: &str, body: Value) -> u16 {
        let address = format!("/api/v1/orders/{}/{what}", self.orders[buyer]);
        let token = self.system.token(&format!("u{buyer}"), 0);
        eventually(|| async {
            let request = self.http.post(self.system.url(&address)).bearer_auth(&token).json(&body);
            let status = request.send().await.unwrap().status().as_u16();
            (status != 503).then_some(status).ok_or("503".to_owned())
        })
        .await
    }

    pub async fn pay(&self, buyer: usize) -> u16 {
        self.post(buyer, "payments", json!({ "channel": "sandbox" })).await
    }

    /// Pays all orders, with up to 32 requests in flight.
    pub async fn pay_all(&self) {
        let paying = stream::iter(0..self.orders.len()).map(|buyer| self.pay(buyer));
        let answers: Vec<u16> = paying.buffer_unordered(CONCURRENCY).collect().await;
        assert!(answers.iter().all(|status| *status == 202), "a payment was refused");
    }

    pub async fn count(&self, sql: &str) -> i64 {
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql.to_owned())).fetch_one(&self.system.sql).await.unwrap()
    }

    /// Waits until a number meets a condition. Fails if the number has not changed during `PATIENCE`.
    async fn wait(&self, what: &str, number: impl AsyncFn() -> i64, wanted: impl Fn(i64) -> bool) {
        let mut last = (i64::MIN, tokio::time::Instant::now());
        loop {
            let is = number().await;
            if wanted(is) {
                return;
            }
            if is != last.0 {
                last = (is, tokio::time::Instant::now());
            }
            assert!(last.1.elapsed() < PATIENCE, "it stays at {is}: {what}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn wait_for(&self, sql: &str, wanted: i64) {
        self.wait_until(sql, |is| is == wanted).await;
    }

    pub async fn wait_until(&self, sql: &str, wanted: impl Fn(i64) -> bool) {
        self.wait(sql, async || self.count(sql).await, wanted).await;
    }

    /// Restarts the bank with the given rates, which may differ from those of the channel.
    pub async fn reopen(&mut self, rates: &Rates) {
        self.bank.close();
        let callbacks = self.system.url("/api/v1/payments/callbacks/sandbox");
        self.bank.open(&callbacks, rates.pay, rates.refund).await;
    }

    pub async fn payment_decided(&self, buyer: usize) {
        let decided = format!(
            "SELECT count(*) FROM payments WHERE order_id = '{}' AND status IN ('succeeded', 'failed', 'abandoned')",
            self.orders[buyer]
        );
        self.wait_for(&decided, 1).await;
    }

    /// Waits until no payment and no refund is in flight.
    pub async fn wait_until_money_settles(&self) {
        let moving = "SELECT (SELECT count(*) FROM payments WHERE status IN ('created', 'sending', 'waiting'))
                           + (SELECT count(*) FROM refunds WHERE status = 'requested')";
        self.wait_for(moving, 0).await;
    }

    /// Checks that the audit finds nothing and that our books agree with the bank's.
    pub async fn finish_and_audit(self) {
        self.finish_and_audit_with(&[]).await;
    }

    pub async fn finish_and_audit_with(self, others: &[Bank]) {
        self.system.settled(&self.sale).await;
        let verdicts = payment_service(&self.system.config).unwrap().compare().await.unwrap();
        assert!(verdicts.iter().all(|verdict| verdict.held && verdict.under_way == 0), "{verdicts:#?}");
        let journal = "SELECT coalesce(sum(CASE WHEN debit LIKE 'channel:%' THEN amount_cents
                                                WHEN credit LIKE 'channel:%' THEN -amount_cents ELSE 0 END), 0)::bigint
                       FROM journal";
        let mut left = self.bank.totals().await.2;
        for bank in others {
            left += bank.totals().await.2;
        }
        assert_eq!(left, self.count(journal).await, "the banks' balance differs from the journal's");
        let sales = "SELECT coalesce(sum(amount_cents), 0)::bigint FROM orders WHERE status = 'paid'";
        assert_eq!(left, self.count(sales).await, "the banks' balance differs from the sum of the paid orders");
        self.system.finish().await;
    }

    pub async fn refunds_at_the_bank(&self, wanted: usize) {
        let refunds = async || i64::try_from(self.bank.totals().await.1).unwrap();
        self.wait("refunds at the bank", refunds, |refunds| refunds >= i64::try_from(wanted).unwrap()).await;
    }

    /// Starts `number` workers and waits until all of them listen for notifications.
    pub async fn workers(&self, number: usize) -> Vec<Running> {
        let workers = (0..number).map(|_| worker(&self.system)).collect();
        self.workers_are_up(number).await;
        workers
    }

    pub async fn workers_are_up(&self, number: usize) {
        // One of the listeners is the service.
        let listening = "SELECT count(*) - 1 FROM pg_stat_activity
                         WHERE datname = current_database() AND query LIKE 'LISTEN%'";
        self.wait_until(listening, |up| up >= i64::try_from(number).unwrap()).await;
    }
}
