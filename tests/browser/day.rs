//! A shop in the middle of its day: every page of the console has contents.

use seckill_domain::policy::{Name, Role};
use seckill_flow::policy_changes;
use seckill_harness::{Sale, eventually};
use serde_json::{Value, json};

use crate::shop::Shop;

/// A failing message is parked soon.
pub const IMPATIENT: [(&str, &str); 3] = [
    ("SECKILL_OUTBOX__MAX_ATTEMPTS", "4"),
    ("SECKILL_OUTBOX__BACKOFF_BASE_MS", "200"),
    ("SECKILL_OUTBOX__BACKOFF_MAX_MS", "500"),
];
/// A quarter of an hour of requests, for the preview of a change.
const MINUTES: &str = "
    INSERT INTO policy_minutes (policy_id, minute, granted, refused, waited_ms, failed)
    SELECT id, date_trunc('minute', now()) - n * interval '1 minute', 4, 1, 0, 0
    FROM policies, generate_series(2, 16) AS n WHERE name = 'everyone'";
/// An item that its receiver refused.
const LETTER: &str = "
    UPDATE outflow_items SET status = 'parked', attempts = 8, last_error = 'the receiver answered 503'
    WHERE key = 'late'";
/// A callback that fits no payment.
const CALLBACK: &str = "
    INSERT INTO callbacks_set_aside (channel, message_id, problem, body)
    VALUES ('sandbox', 'msg_1', 'unknown payment', '{\"payment_id\":\"none\"}')";

pub struct Day {
    pub shop: Shop,
    /// On sale, with orders in every state.
    pub open: Sale,
    /// Begins in an hour.
    pub planned: Sale,
    /// Closed, and one of its holds has lapsed.
    pub closed: Sale,
    pub paid: String,
}

impl Day {
    /// Accounts, sales, orders, a parked message, an outflow, an application with policies, and an alarm.
    pub async fn begin() -> Self {
        let shop = Shop::open(&IMPATIENT).await;
        shop.people().await;
        let open = shop.sale(&["--stock", "500", "--per-user", "2"]).await;
        let terms = ["--stock", "20", "--starts-in", "3600", "--ends-in", "7200", "--wave", "60:5"];
        let planned = shop.sale_of("Lamp", "2500", &terms).await;
        let closed = shop.sale_of("Kettle", "4900", &["--stock", "3"]).await;
        shop.lapse(&closed, "finn").await;
        shop.command(&["sale", "close", &closed.id.to_string()]).await;
        shop.park(&open).await;
        let paid = shop.order_of(&open, "ann").await;
        shop.pay(&paid, "ann").await;
        let refunded = shop.order_of(&open, "dan").await;
        shop.pay(&refunded, "dan").await;
        shop.act(&refunded, "dan", "refunds", json!({ "reason": "too loud" })).await;
        shop.until(&refunded, "dan", "refunded").await;
        let cancelled = shop.order_of(&open, "cat").await;
        shop.act(&cancelled, "cat", "cancel", Value::Null).await;
        shop.order_of(&open, "bob").await;
        shop.limits().await;
        shop.outflow().await;
        shop.system.execute(CALLBACK).await;
        Self { shop, open, planned, closed, paid }
    }
}

impl Shop {
    /// Buys a unit, and waits until its order can be paid.
    pub async fn order_of(&self, sale: &Sale, user: &str) -> String {
        let order = self.system.buy(sale, user).send().await.order_id();
        self.until(&order, user, "pending_payment").await;
        order
    }

    pub async fn pay(&self, order: &str, user: &str) {
        self.act(order, user, "payments", json!({ "channel": "sandbox" })).await;
        self.until(order, user, "paid").await;
    }

    /// Performs a buyer's action on an order.
    async fn act(&self, order: &str, user: &str, what: &str, body: Value) {
        let url = self.system.url(&format!("/api/v1/orders/{order}/{what}"));
        let mut request = reqwest::Client::new().post(url).bearer_auth(self.system.token(user, 0));
        if !body.is_null() {
            request = request.json(&body);
        }
        eventually(|| async {
            let answer = request.try_clone().unwrap().send().await.unwrap();
            let (status, text) = (answer.status(), answer.text().await.unwrap());
            // A busy service may refuse for a moment.
            assert!(status.is_success() || status == 503, "{what}: {text}");
            if status.is_success() { Ok(()) } else { Err(text) }
        })
        .await;
    }

    pub async fn until(&self, order: &str, user: &str, status: &str) {
        seckill_harness::until(status, || async {
            let path = format!("/api/v1/orders/{order}");
            self.system.get(&path, Some(user)).await.1["status"].clone()
        })
        .await;
    }

    /// A buyer does not pay in time.
    async fn lapse(&self, sale: &Sale, user: &str) {
        let order = self.order_of(sale, user).await;
        self.system.let_deadlines_pass(sale).await;
        self.until(&order, user, "cancelled").await;
        seckill_harness::until(1, || self.system.count("SELECT count(*) FROM lapsed_holds WHERE sale_id = $1", sale))
            .await;
    }

    /// Parks the message of Eve's purchase, and waits for the alarm. Returns the order.
    pub async fn park(&self, sale: &Sale) -> String {
        self.system.refuse("INSERT ON orders", "NEW.user_id = 'eve'").await;
        let order = self.system.buy(sale, "eve").send().await.order_id();
        seckill_harness::until((1, 1), || async {
            let alarms = "SELECT count(*) FROM alarms WHERE kind = 'parked' AND cleared_at IS NULL";
            (
                self.system.stores.ledger.outbox.parked(None, None, 10).await.unwrap().len(),
                self.system.number(alarms).await,
            )
        })
        .await;
        order
    }

    /// An application with contradicting policies. The manager owns it, and the viewer sees it; neither sees the other application.
    pub async fn limits(&self) {
        for named in ["mailer", "scanner"] {
            self.command(&["app", "create", named]).await;
            let terms = ["--app", named, "--algorithm", "fixed-window", "--window-ms", "60000"];
            for (name, limit, more) in [("everyone", "5", &[][..]), ("each", "50", &["--key", "user"][..])] {
                let own = ["policy", "set", "--name", name, "--limit", limit];
                self.command(&[&own[..], &terms[..], more].concat()).await;
            }
        }
        for (account, role) in [("max", Role::Owner), ("vic", Role::Viewer)] {
            let (app, account) = (Name::parse("mailer", "app").unwrap(), crate::console::account(account));
            policy_changes::grant(&self.system.stores.ledger, &app, &account, Some(role), "test").await.unwrap();
        }
        self.system.execute(MINUTES).await;
    }

    /// A paused outflow with a waiting item and a parked one.
    async fn outflow(&self) {
        let created = ["outflow", "create", "letters", "--rate", "1", "--target", "http://127.0.0.1:9/"];
        self.command(&created).await;
        self.command(&["outflow", "pause", "letters"]).await;
        for key in ["soon", "late"] {
            self.command(&["outflow", "add", "letters", "--key", key, "--payload", "{\"text\":\"Hello\"}"]).await;
        }
        self.system.execute(LETTER).await;
    }
}
