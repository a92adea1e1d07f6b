//! Payments, refunds, callbacks and outflows that fail, at a sandbox bank that dies and comes back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Client;
use seckill_delivery::outflow_changes::{self, OutflowChange};
use seckill_domain::outflow::Pace;
use seckill_domain::payment::RefundId;
use seckill_harness::receiver::{Arrival, Receiver, Reply};
use seckill_harness::{Sale, eventually, terms, until};
use seckill_postgres::outflow::items::NewItem;
use serde_json::{Value, json};
use uuid::Uuid;

use super::drill::Drill;
use super::programs::Programs;
use super::scene::Scene;
use crate::network::service_killed::Process;
use crate::orders::payments_and_callbacks::Callback;
use seckill_harness::folder::free_address;

/// Each trouble with money is an alert until its cause is gone.
#[tokio::test(flavor = "multi_thread")]
async fn money_that_does_not_move_is_an_alert_until_it_does() {
    let (at, at_work, at_bank) = (free_address(), free_address(), free_address());
    let bank_url = format!("http://{at_bank}");
    let settings = [
        ("SECKILL_CHANNELS__SANDBOX__URL", bank_url.as_str()),
        // On a busy machine the bank records arrival times late.
        ("SECKILL_CHANNELS__SANDBOX__JITTER_MS", "250"),
        // One payment is claimed at a time, so that a backlog grows while the bank is dead.
        ("SECKILL_CHANNELS__SANDBOX__RATE", "10"),
        ("SECKILL_CHANNELS__SANDBOX__REFUND_RATE", "10"),
        ("SECKILL_PAYMENTS__ASK_AFTER_MS", "2000"),
    ];
    let programs = Programs::prepare(&settings).await;
    let system = &programs.system;
    let drill = Drill::start(&programs, &[at], &[at_work]);
    let bank = Bank { programs: &programs, at: at_bank, callbacks_at: at };
    let (opened, serve, work) = tokio::join!(
        bank.open(),
        programs.start("serve", at, &["serve"], &[]),
        // A channel without an address is not offered.
        programs.start("work", at_work, &["work"], &[("SECKILL_CHANNELS__SANDBOX__URL", "")]),
    );
    let sale = system.create_sale(terms(10)).await;
    let scene = Scene { drill: &drill, system, at };
    // Counters with labels appear with the first order.
    let first = scene.order(&sale, "first").await;
    let others = join_all(["ann", "ben", "eve"].map(async |user| (scene.order(&sale, user).await, user))).await;
    drill.begin().await;

    let unconfigured = ["SeckillChannelNotConfigured"];
    drill.fires_after(&unconfigured, scene.pay(first, "first")).await;
    let configure = async {
        drop(work);
        let work = programs.start("work", at_work, &["work"], &[]).await;
        // Otherwise the relay would look at it again after a minute.
        scene.system.execute("UPDATE outbox SET next_attempt_at = now() WHERE kind = 'payment_requested'").await;
        work
    };
    let bank_and_its_money = async {
        scene.has_status(first, "paid").await;
        let dies = the_bank_dies(scene, &bank, opened, &others, first);
        tokio::join!(dies, the_bank_reports_another_amount(scene, first)).0
    };
    let (work, opened, ..) = tokio::join!(
        drill.clears_after(&unconfigured, configure),
        bank_and_its_money,
        strangers_call_back(scene),
        a_receiver_refuses_an_item(scene),
        an_outflow_is_paused(scene),
    );
    drill.finish().await;
    drop((serve, work, opened));
    programs.system.finish().await;
}

/// The sandbox bank, a process that keeps its books in a file.
struct Bank<'a> {
    programs: &'a Programs,
    at: SocketAddr,
    callbacks_at: SocketAddr,
}

impl Bank<'_> {
    async fn open(&self) -> Process {
        let books = self.programs.folder.path().join("bank.jsonl");
        let callbacks = format!("http://{}/api/v1/payments/callbacks/sandbox", self.callbacks_at);
        let settings = [
            ("SECKILL_SANDBOX__DATA_FILE", books.to_str().unwrap()),
            ("SECKILL_SANDBOX__CALLBACK_URL", callbacks.as_str()),
            ("SECKILL_SANDBOX__PAY_RATE", "1000"),
            ("SECKILL_SANDBOX__REFUND_RATE", "100"),
            ("SECKILL_SANDBOX__CONFIRM_MS", "20"),
        ];
        self.programs.start("bank", self.at, &["channel-sandbox"], &settings).await
    }

    async fn switch(&self, switches: Value) {
        let put = Client::new().put(format!("http://{}/v1/admin/switches", self.at)).json(&switches);
        let answer = put.send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    }
}

impl Scene<'_> {
    async fn pay(&self, order: Uuid, user: &str) {
        self.post(&format!("/api/v1/orders/{order}/payments"), user, json!({ "channel": "sandbox" })).await;
    }

    /// Posts as this buyer until the service accepts.
    async fn post(&self, path: &str, user: &str, body: Value) {
        let (url, token) = (format!("http://{}{path}", self.at), self.system.token(user, 0));
        eventually(|| async {
            let request = Client::new().post(&url).bearer_auth(&token).json(&body);
            let status = request.send().await.map_err(|error| error.to_string())?.status();
            (status == 202).then_some(()).ok_or_else(|| format!("{status} for {path}"))
        })
        .await;
    }

    /// Buys a unit, and waits until the order can be paid.
    async fn order(&self, sale: &Sale, user: &str) -> Uuid {
        let order = self.bought(sale, user).await;
        self.has_status(order, "pending_payment").await;
        order
    }

    async fn has_status(&self, order: Uuid, wanted: &str) {
        until(Some(wanted.to_owned()), || async {
            let status = sqlx::query_scalar("SELECT status FROM orders WHERE id = $1").bind(order);
            status.fetch_optional(&self.system.sql).await.unwrap()
        })
        .await;
    }

    async fn calls_back(&self, callback: &Callback, body: String) -> u16 {
        let url = format!("http://{}/api/v1/payments/callbacks/sandbox", self.at);
        let mut request = Client::new().post(url).body(body);
        for (name, value) in callback.headers() {
            request = request.header(name, value);
        }
        request.send().await.unwrap().status().as_u16()
    }
}

async fn the_bank_reports_another_amount(scene: Scene<'_>, paid: Uuid) {
    let alerts = ["SeckillSetAside"];
    let payment = sqlx::query_scalar("SELECT id FROM payments WHERE order_id = $1").bind(paid);
    let payment: Uuid = payment.fetch_one(&scene.system.sql).await.unwrap();
    let report = async {
        let callback = Callback::of("payment.succeeded", payment, ("order_id", paid), 999);
        until(422, || scene.calls_back(&callback, callback.body())).await;
    };
    let settle = async {
        let ledger = &scene.system.stores.ledger;
        let aside = ledger.payments.callbacks_set_aside(None, 10).await.unwrap();
        let ids: Vec<i64> = aside.iter().map(|callback| callback.id).collect();
        assert_eq!(ledger.payments.settle_set_aside(&ids, "test").await.unwrap(), 1);
    };
    scene.drill.fires_and_clears(&alerts, report, settle).await;
}

async fn the_bank_declines_a_refund(scene: Scene<'_>, bank: &Bank<'_>, paid: Uuid) {
    let alerts = ["SeckillRefundFailed"];
    let decline = async {
        bank.switch(json!({ "decline_permille": 1000 })).await;
        scene.post(&format!("/api/v1/orders/{paid}/refunds"), "first", json!({ "reason": "" })).await;
    };
    let retry = async {
        bank.switch(json!({ "decline_permille": 0 })).await;
        let failed = sqlx::query_scalar("SELECT id FROM refunds WHERE status = 'failed'");
        let refund = RefundId(failed.fetch_one(&scene.system.sql).await.unwrap());
        assert!(scene.system.stores.ledger.payments.retry_refund(refund, "test").await.unwrap());
    };
    scene.drill.fires_and_clears(&alerts, decline, retry).await;
    scene.has_status(paid, "refunded").await;
}

/// The test backdates the payments and the bank's absence. The bank that is back has a refund to decline meanwhile.
async fn the_bank_dies(
    scene: Scene<'_>,
    bank: &Bank<'_>,
    opened: Process,
    orders: &[(Uuid, &str)],
    paid: Uuid,
) -> Process {
    let alerts = ["SeckillChannelFails", "SeckillReceiverAway", "SeckillPaymentsLate", "SeckillMoneyStuck"];
    let die = async {
        drop(opened);
        for (order, user) in orders {
            scene.pay(*order, user).await;
        }
        let longer = "UPDATE payments SET created_at = created_at - interval '20 minutes'
                      WHERE status IN ('created', 'sending', 'waiting')";
        scene.system.execute(longer).await;
        let away =
            "UPDATE receivers_away SET since = since - interval '10 seconds' WHERE receiver = 'payments sandbox'";
        until(1, || scene.system.execute(away)).await;
    };
    scene.drill.fires_after(&alerts, die).await;
    let opened = bank.open().await;
    let refund = async {
        for (order, _) in orders {
            scene.has_status(*order, "paid").await;
        }
        the_bank_declines_a_refund(scene, bank, paid).await;
    };
    tokio::join!(scene.drill.clears_after(&alerts, async {}), refund);
    opened
}

/// Callbacks with a valid signature for another body.
async fn strangers_call_back(scene: Scene<'_>) {
    let alerts = ["SeckillCallbacksNotBelieved"];
    let forge = async {
        loop {
            let callback = Callback::of("payment.succeeded", Uuid::new_v4(), ("order_id", Uuid::new_v4()), 100);
            assert_eq!(scene.calls_back(&callback, format!("{} ", callback.body())).await, 401);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    scene.drill.fires_while(&alerts, forge).await;
    // They have given up.
    scene.drill.clears_after(&alerts, async {}).await;
}

async fn a_receiver_refuses_an_item(scene: Scene<'_>) {
    let alerts = ["SeckillDeadChannel"];
    let well = Arc::new(AtomicBool::new(false));
    let mended = Arc::clone(&well);
    let refuse =
        move |_: &Arrival, _: usize| if mended.load(Ordering::Relaxed) { Reply::OK } else { Reply::status(422) };
    let receiver = Receiver::scripted(refuse);
    scene.create_outflow("coupons", &receiver).await;
    let retry = async {
        well.store(true, Ordering::Relaxed);
        let retried = scene.system.stores.ledger.outflows.unpark_outflow("coupons", &[], "test").await.unwrap();
        assert_eq!(retried, 1);
    };
    scene.drill.fires_and_clears(&alerts, scene.add_item("coupons"), retry).await;
}

async fn an_outflow_is_paused(scene: Scene<'_>) {
    let alerts = ["SeckillOutflowStands"];
    let receiver = Receiver::start();
    scene.create_outflow("vouchers", &receiver).await;
    let pause = async {
        scene.set_paused("vouchers", true).await;
        scene.add_item("vouchers").await;
        scene.add_item("vouchers").await;
    };
    scene.drill.fires_and_clears(&alerts, pause, scene.set_paused("vouchers", false)).await;
    // The alert has cleared with the first one.
    until(true, || async { receiver.seen().len() >= 2 }).await;
}

impl Scene<'_> {
    async fn create_outflow(&self, name: &str, receiver: &Receiver) {
        let pace = Pace::parse(50, 60).unwrap();
        let created =
            self.system.stores.ledger.outflows.create_outflow(name, pace, &receiver.url(), 1_000, "test").await;
        assert!(created.unwrap());
    }

    async fn add_item(&self, outflow: &str) {
        let (id, key) = (Uuid::now_v7(), "key".to_owned());
        let item = NewItem { id, channel: outflow.to_owned(), key, payload: json!({}) };
        self.system.stores.ledger.outflows.enqueue_outflow(&item).await.unwrap();
    }

    async fn set_paused(&self, outflow: &str, paused: bool) {
        let change = OutflowChange { paused: Some(paused), ..OutflowChange::default() };
        assert!(outflow_changes::change(&self.system.stores.ledger.outflows, outflow, change, "test").await.unwrap());
    }
}
