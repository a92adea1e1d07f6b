//! Payments, refunds, and callbacks that are forged, late, repeated or wrong. The test itself is the bank here, and signs any text;
//! tests/money uses the sandbox.

use futures_util::future::join_all;
use reqwest::Client;
use seckill_domain::sale::NewSale;
use seckill_postgres::money::payment_dispatch::PaymentClaim;
use seckill_webhook::{Secret, signed_headers};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::network::service_killed::Process;
use seckill_harness::{Answer, Sale, System, eventually, terms, until};

const SECRET: &str = "whsec_ZGV2ZWxvcG1lbnQtc2FuZGJveC1zZWNyZXQtMDE=";
const OTHER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// A system for the tests below, during a key change of the channel. Nothing expires by itself during a test: the tests move the deadlines.
/// The sweeper runs often.
async fn shared() -> System {
    let secrets = format!("{OTHER},{SECRET}");
    let settings = [
        ("SECKILL_CHANNELS__SANDBOX__SECRETS", secrets.as_str()),
        ("SECKILL_PAYMENTS__WAIT_MS", "600000"),
        ("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "200"),
        ("SECKILL_RECONCILE__SWEEP_GRACE_MS", "100"),
    ];
    System::shared_with(&settings).await
}

#[derive(Clone)]
pub struct Callback {
    pub kind: &'static str,
    pub data: Value,
    pub id: String,
    pub at_s: i64,
    pub secret: &'static str,
}

impl Callback {
    /// Success or failure of a payment or refund; `key` is ours.
    pub fn of(kind: &'static str, key: Uuid, subject: (&str, Uuid), amount_cents: i64) -> Self {
        let status = kind.split_once('.').unwrap().1;
        let mut data =
            json!({ "key": key, "id": "x_1", "status": status, "amount_cents": amount_cents, "currency": "CNY" });
        data[subject.0] = json!(subject.1);
        let (id, at_s) = (format!("msg_{}", Uuid::new_v4()), chrono::Utc::now().timestamp());
        Self { kind, data, id, at_s, secret: SECRET }
    }

    pub fn body(&self) -> String {
        json!({ "type": self.kind, "timestamp": "2026-01-01T00:00:00Z", "data": self.data }).to_string()
    }

    pub fn headers(&self) -> Vec<(&'static str, String)> {
        signed_headers(&[Secret::parse(self.secret).unwrap()], &self.id, self.at_s, self.body().as_bytes())
    }

    pub async fn send(&self, system: &System) -> u16 {
        self.send_as(system, self.body()).await
    }

    /// Signed as it is, but sent with another body.
    async fn send_as(&self, system: &System, body: String) -> u16 {
        let mut request = Client::new().post(system.url("/api/v1/payments/callbacks/sandbox")).body(body);
        for (name, value) in self.headers() {
            request = request.header(name, value);
        }
        request.send().await.unwrap().status().as_u16()
    }
}

/// Buys a unit. Repeats the same purchase while the service is too busy to sell.
pub async fn bought(system: &System, sale: &Sale, user: &str) -> Uuid {
    let key = Uuid::new_v4().to_string();
    eventually(|| async {
        let answer = system.buy(sale, user).idempotent(&key).send().await;
        if answer.status == 202 { Ok(answer.order_id().parse().unwrap()) } else { Err(answer.code()) }
    })
    .await
}

pub async fn order(system: &System, sale: &Sale, user: &str) -> Uuid {
    let order = bought(system, sale, user).await;
    becomes(system, order, user, "pending_payment").await;
    order
}

pub async fn post(system: &System, order: Uuid, what: &str, user: &str, body: Value) -> Answer {
    let request = Client::new().post(system.url(&format!("/api/v1/orders/{order}/{what}")));
    let response = request.bearer_auth(system.token(user, 0)).json(&body).send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Answer { status, body: response.json().await.unwrap_or_default(), headers }
}

pub async fn pay(system: &System, order: Uuid, user: &str) -> Uuid {
    let answer = post(system, order, "payments", user, json!({ "channel": "sandbox" })).await;
    assert_eq!(answer.code(), "202", "{}", answer.body);
    answer.body["payment_id"].as_str().unwrap().parse().unwrap()
}

pub async fn paid(system: &System, order: Uuid, user: &str) -> Uuid {
    let payment = pay(system, order, user).await;
    let callback = Callback::of("payment.succeeded", payment, ("order_id", order), 100);
    assert_eq!(callback.send(system).await, 200);
    payment
}

/// The status of an order, unless the service answers with an error, as it may for a moment on a busy machine.
async fn status_now(system: &System, order: Uuid, user: &str) -> Result<String, String> {
    let (code, body) = system.get(&format!("/api/v1/orders/{order}"), Some(user)).await;
    let status = body["status"].as_str().filter(|_| code == 200);
    status.map(str::to_owned).ok_or_else(|| format!("{code} {body}"))
}

pub async fn status(system: &System, order: Uuid, user: &str) -> String {
    eventually(|| status_now(system, order, user)).await
}

pub async fn becomes(system: &System, order: Uuid, user: &str, wanted: &str) {
    until(Ok(wanted.to_owned()), || status_now(system, order, user)).await;
}

const JOURNAL: &str = "SELECT count(*) FROM journal j JOIN orders o ON o.id = j.order_id WHERE o.sale_id = $1";

/// Refunds of a sale's orders that had ended when they were paid.
const REFUNDS: &str = "SELECT count(*) FROM refunds r JOIN orders o ON o.id = r.order_id
                       WHERE o.sale_id = $1 AND r.cause = 'order-ended'";

pub async fn refund_key(system: &System, payment: Uuid) -> Uuid {
    sqlx::query_scalar("SELECT key FROM refunds WHERE payment_id = $1")
        .bind(payment)
        .fetch_one(&system.sql)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_paid_once_however_often_the_bank_says_so() {
    let system = shared().await;
    let sale = system.create_sale(terms(5)).await;
    let order = order(&system, &sale, "ann").await;
    let payment = pay(&system, order, "ann").await;
    assert_eq!(pay(&system, order, "ann").await, payment, "asked again, it is the same payment");
    let callback = Callback::of("payment.succeeded", payment, ("order_id", order), 100);
    // The same message ten times at once, and another with the same content (F9).
    let again = Callback { id: format!("msg_{}", Uuid::new_v4()), ..callback.clone() };
    let told = (0..10).map(|n| if n % 2 == 0 { callback.send(&system) } else { again.send(&system) });
    assert_eq!(join_all(told).await, [200; 10]);
    assert_eq!(status(&system, order, "ann").await, "paid");
    assert_eq!(system.count(JOURNAL, &sale).await, 1);
    for what in ["payments", "cancel"] {
        let answer = post(&system, order, what, "ann", json!({ "channel": "sandbox" })).await;
        assert_eq!(answer.code(), "409 illegal-state", "{what}");
    }
    system.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_that_come_together_are_applied_together_and_judged_each_by_itself() {
    const GOOD: usize = 40;
    let system = shared().await;
    let sale = system.create_sale(terms(100)).await;
    let users: Vec<String> = (0..GOOD + 4).map(|n| format!("u{n}")).collect();
    let begun = join_all(users.iter().map(|user| async {
        let order = order(&system, &sale, user).await;
        (order, pay(&system, order, user).await)
    }));
    let begun = begun.await;
    let says = |n: usize, kind, amount| Callback::of(kind, begun[n].1, ("order_id", begun[n].0), amount);
    let [wrong, declined, cancelled, locked] = [GOOD, GOOD + 1, GOOD + 2, GOOD + 3];
    assert_eq!(post(&system, begun[cancelled].0, "cancel", &users[cancelled], json!({})).await.status, 200);
    let mut at_work = system.sql.begin().await.unwrap();
    let lock = sqlx::query("SELECT FROM orders WHERE id = $1 FOR UPDATE").bind(begun[locked].0);
    lock.execute(&mut *at_work).await.unwrap();

    let last = says(locked, "payment.succeeded", 100);
    let others = async {
        let mut callbacks: Vec<Callback> = (0..GOOD).map(|n| says(n, "payment.succeeded", 100)).collect();
        // The first one is repeated, and contradicted.
        callbacks.extend([
            says(0, "payment.succeeded", 100),
            says(0, "payment.succeeded", 99),
            says(wrong, "payment.succeeded", 99),
            says(declined, "payment.failed", 100),
            says(cancelled, "payment.succeeded", 100),
        ]);
        let answers = join_all(callbacks.iter().map(|callback| callback.send(&system))).await;
        at_work.rollback().await.unwrap();
        answers
    };
    // It may be refused for a moment, if the others take longer than a transaction waits for a lock.
    let last = until(200, || last.send(&system));
    let ((), answers) = tokio::join!(last, others);
    assert_eq!(answers[..GOOD], [200; GOOD]);
    assert_eq!(answers[GOOD..], [200, 422, 422, 200, 200]);

    for (n, expected) in
        [(wrong, "pending_payment"), (declined, "pending_payment"), (cancelled, "cancelled"), (locked, "paid")]
    {
        assert_eq!(status(&system, begun[n].0, &users[n]).await, expected, "{n}");
    }
    let booked = "SELECT count(*) FROM journal j JOIN orders o ON o.id = j.order_id
                  WHERE o.sale_id = $1 AND j.entry = 'payment' AND j.credit = 'sales'";
    assert_eq!(system.count(booked, &sale).await, i64::try_from(GOOD + 1).unwrap());
    let paid = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'paid'";
    assert_eq!(system.count(paid, &sale).await, 41);
    assert_eq!(system.count(REFUNDS, &sale).await, 1);
    let transactions = "SELECT count(DISTINCT p.xmin::text) FROM payments p JOIN orders o ON o.id = p.order_id
                        WHERE o.sale_id = $1 AND p.pays";
    let transactions = system.count(transactions, &sale).await;
    assert!(transactions < 41, "each callback had a transaction of its own");
}

/// Eve pays while two payments wait, which is the maximum written at once.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_locked_delays_only_its_own_payment() {
    // An eighth of the connections wait for locked orders.
    let system = System::start_with(&[("SECKILL_DATABASE__MAX_CONNECTIONS", "16")]).await;
    let sale = system.create_sale(terms(10)).await;
    let users = ["ann", "bob", "cat", "dan"];
    let orders = join_all(users.iter().map(|user| order(&system, &sale, user))).await;
    let free = order(&system, &sale, "eve").await;
    let mut at_work = system.sql.begin().await.unwrap();
    let lock = sqlx::query("SELECT FROM orders WHERE id = ANY($1) FOR UPDATE").bind(&orders);
    lock.execute(&mut *at_work).await.unwrap();

    let waiting = || async {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%orders%'";
        match system.number(waiting).await {
            0 | 1 => Err("fewer than two payments wait".to_owned()),
            _ => Ok(()),
        }
    };
    let eve_pays = eventually(|| async {
        waiting().await?;
        pay(&system, free, "eve").await;
        waiting().await
    });
    let others = users.iter().zip(&orders).map(|(user, order)| {
        let system = &system;
        until("202", move || async move {
            post(system, *order, "payments", user, json!({ "channel": "sandbox" })).await.code()
        })
    });
    let eve_pays = async {
        eve_pays.await;
        at_work.rollback().await.unwrap();
    };
    tokio::join!(join_all(others), eve_pays);
    system.finish().await;
}

/// Orders of a sale past their deadline that wait for a payment in flight.
const WAITING: &str = "SELECT count(*) FROM orders
                       WHERE sale_id = $1 AND status = 'pending_payment'
                         AND expires_at < now() AND wait_until > now()";

/// F10.
#[tokio::test(flavor = "multi_thread")]
async fn money_for_an_order_that_is_cancelled_goes_back_and_wakes_nothing() {
    let system = shared().await;
    let sale = system.create_sale(NewSale { pay_within_ms: 600_000, ..terms(2) }).await;
    let (expires, cancels) = (order(&system, &sale, "ann").await, order(&system, &sale, "bob").await);
    let late = [(expires, pay(&system, expires, "ann").await), (cancels, pay(&system, cancels, "bob").await)];
    assert_eq!(post(&system, cancels, "cancel", "bob", json!({})).await.code(), "200");
    system.let_deadlines_pass(&sale).await;
    assert_eq!(system.count(WAITING, &sale).await, 1, "ann's payment began in time");
    let waited =
        "UPDATE orders SET wait_until = now() - interval '1 second' WHERE id = $1 AND status = 'pending_payment'";
    let waited = sqlx::query(waited).bind(expires).execute(&system.sql).await.unwrap();
    assert_eq!(waited.rows_affected(), 1, "the order waits until its payment has had all its time");
    becomes(&system, expires, "ann", "cancelled").await;
    for (order, payment) in late {
        let callback = Callback::of("payment.succeeded", payment, ("order_id", order), 100);
        for _ in 0..3 {
            assert_eq!(callback.send(&system).await, 200);
        }
    }
    assert_eq!(system.count(REFUNDS, &sale).await, 2);
    let leaving = "SELECT count(*) FROM outflow_items i
                   JOIN refunds r ON r.key = i.id JOIN orders o ON o.id = r.order_id
                   WHERE o.sale_id = $1 AND i.channel = 'refunds-sandbox'";
    assert_eq!(system.count(leaving, &sale).await, 2);
    let cancelled = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'cancelled'";
    assert_eq!(system.count(cancelled, &sale).await, 2);
    for (_, payment) in late {
        let key = refund_key(&system, payment).await;
        let callback = Callback::of("refund.succeeded", key, ("payment_key", payment), 100);
        assert_eq!([callback.send(&system).await, callback.send(&system).await], [200, 200]);
    }
    let given_back = "SELECT count(*) FROM journal j JOIN orders o ON o.id = j.order_id
                      WHERE o.sale_id = $1 AND j.entry = 'refund'";
    assert_eq!(system.count(given_back, &sale).await, 2);
    assert_eq!((status(&system, expires, "ann").await.as_str(), system.stock(&sale).await), ("cancelled", 2));
    system.settled(&sale).await;
}

/// Rule 8: an order with a payment that began in time is not cancelled while the bank decides, for a bounded time.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_waits_for_a_payment_that_began_in_time() {
    let system = shared().await;
    let sale = system.create_sale(NewSale { pay_within_ms: 600_000, ..terms(3) }).await;
    let (pays, fails) = (order(&system, &sale, "ann").await, order(&system, &sale, "bob").await);
    let (paying, failing) = (pay(&system, pays, "ann").await, pay(&system, fails, "bob").await);
    system.let_deadlines_pass(&sale).await;
    // Cat has not begun to pay. Her message is not due, so the sweeper cancels her order. It has checked the other two as well, because
    // their deadlines passed before hers.
    let unpaid = order(&system, &sale, "cat").await;
    let passed = "UPDATE orders SET expires_at = now() - interval '1 second' WHERE id = $1";
    sqlx::query(passed).bind(unpaid).execute(&system.sql).await.unwrap();
    becomes(&system, unpaid, "cat", "cancelled").await;
    assert_eq!(system.count(WAITING, &sale).await, 2, "who began to pay in time is not cancelled");
    assert_eq!(Callback::of("payment.succeeded", paying, ("order_id", pays), 100).send(&system).await, 200);
    assert_eq!(status(&system, pays, "ann").await, "paid");
    // A payment that fails after the deadline leaves nothing to wait for.
    assert_eq!(Callback::of("payment.failed", failing, ("order_id", fails), 100).send(&system).await, 200);
    becomes(&system, fails, "bob", "cancelled").await;
    let early = "SELECT count(*) FROM orders
                 WHERE sale_id = $1 AND user_id = 'bob' AND status = 'cancelled'
                   AND updated_at < expires_at + interval '600 s'";
    assert_eq!(system.count(early, &sale).await, 1, "it did not wait to the end");
    system.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declined_order_can_be_paid_again_and_money_that_comes_twice_goes_back() {
    let system = shared().await;
    let sale = system.create_sale(terms(1)).await;
    let order = order(&system, &sale, "ann").await;
    let declined = pay(&system, order, "ann").await;
    assert_eq!(Callback::of("payment.failed", declined, ("order_id", order), 100).send(&system).await, 200);
    let second = paid(&system, order, "ann").await;
    assert_ne!(second, declined);
    assert_eq!(status(&system, order, "ann").await, "paid");
    // The bank has changed its mind about the first one.
    assert_eq!(Callback::of("payment.succeeded", declined, ("order_id", order), 100).send(&system).await, 200);
    let refunded = "SELECT payment_id FROM refunds WHERE order_id = $1 AND cause = 'order-already-paid'";
    let refunded: Uuid = sqlx::query_scalar(refunded).bind(order).fetch_one(&system.sql).await.unwrap();
    assert_eq!(refunded, declined);
    assert_eq!(status(&system, order, "ann").await, "paid");
    system.settled(&sale).await;
}

/// A payment given up with its order. If it may have been sent, the channel is asked about it, and not told to charge.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_bank_says_of_a_payment_that_was_given_up_is_heard() {
    let system = System::without_workers(&[]).await;
    let sale = system.create_sale(terms(3)).await;
    let maker = Process::work(&system, "relay,fulfil,release");
    let orders = [order(&system, &sale, "ann").await, order(&system, &sale, "bob").await];
    for ((order, user), kind) in orders.into_iter().zip(["ann", "bob"]).zip(["payment.failed", "payment.succeeded"]) {
        let payment = pay(&system, order, user).await;
        assert_eq!(post(&system, order, "cancel", user, json!({})).await.code(), "200");
        let given_up = "SELECT count(*) FROM payments WHERE status = 'abandoned'";
        assert!(system.number(given_up).await > 0, "nothing was sent");
        let callback = Callback::of(kind, payment, ("order_id", order), 100);
        assert_eq!([callback.send(&system).await, callback.send(&system).await], [200, 200], "{kind}");
        let refunds = i64::from(kind == "payment.succeeded");
        assert_eq!(system.number("SELECT count(*) FROM refunds").await, refunds, "{kind}");
    }
    system.settled(&sale).await;

    let order = order(&system, &sale, "cat").await;
    let payment = pay(&system, order, "cat").await;
    // It was sent once. The channel was asked about it, and did not know it.
    let unsure = "UPDATE payments SET unsure = true, claim = 1, sent_at = now() WHERE id = $1 AND status = 'created'";
    let done = sqlx::query(unsure).bind(payment).execute(&system.sql).await.unwrap();
    assert_eq!(done.rows_affected(), 1);
    assert_eq!(post(&system, order, "cancel", "cat", json!({})).await.code(), "200");
    let (status, asked): (String, bool) = sqlx::query_as("SELECT status, ask_at <= now() FROM payments WHERE id = $1")
        .bind(payment)
        .fetch_one(&system.sql)
        .await
        .unwrap();
    assert_eq!((status.as_str(), asked), ("waiting", true));
    let ledger = &system.stores.ledger;
    let pace = seckill_domain::outflow::Pace::parse(100, 60).unwrap();
    ledger.payments.set_payment_pace("sandbox", pace).await.unwrap();
    let ask_after = std::time::Duration::from_secs(1);
    let payment_id = seckill_domain::payment::PaymentId(payment);
    let claimed = ledger.payments.claim_payments("sandbox", &[payment_id], 10, ask_after).await.unwrap();
    let nothing = matches!(&claimed, PaymentClaim::Due { payments, looked_at: 1 } if payments.is_empty());
    assert!(nothing, "{claimed:?}");
    // The money arrived after all, and is refunded.
    let callback = Callback::of("payment.succeeded", payment, ("order_id", order), 100);
    assert_eq!(callback.send(&system).await, 200);
    assert_eq!(system.number("SELECT count(*) FROM refunds").await, 2);
    drop(maker);
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refunded_unit_is_sold_again_or_kept_as_the_sale_says() {
    let system = shared().await;
    for keeps in [false, true] {
        let sale = system.create_sale(NewSale { refund_returns_stock: !keeps, ..terms(1) }).await;
        let order = order(&system, &sale, "ann").await;
        let refund = |user| post(&system, order, "refunds", user, json!({ "reason": "too small" }));
        assert_eq!(refund("ann").await.code(), "409 illegal-state", "nothing is paid yet");
        let payment = paid(&system, order, "ann").await;
        assert_eq!(refund("bob").await.code(), "404 unknown-order");
        let asked = refund("ann").await;
        assert_eq!((asked.code().as_str(), &asked.body["status"]), ("202", &json!("requested")));
        assert_eq!(refund("ann").await.body["refund_id"], asked.body["refund_id"], "asked again, it is the same");
        assert_eq!(status(&system, order, "ann").await, "refunding");
        system.settled(&sale).await;
        let key = refund_key(&system, payment).await;
        let callback = Callback::of("refund.succeeded", key, ("payment_key", payment), 100);
        assert_eq!([callback.send(&system).await, callback.send(&system).await], [200, 200]);
        assert_eq!(status(&system, order, "ann").await, "refunded");
        assert_eq!(refund("ann").await.code(), "409 illegal-state");
        system.settled(&sale).await;
        let left = i64::from(!keeps);
        assert_eq!((system.stock(&sale).await, system.available(&sale).await), (left, Some(left)));
        assert_eq!(system.count(JOURNAL, &sale).await, 3);
        // A refunded buyer may buy again if there is stock. The instance remembers for a moment that the sale was sold out.
        until(if keeps { "409 sold-out" } else { "202" }, || async { system.buy(&sale, "ann").send().await.code() })
            .await;
    }
}

/// A2: forged, stale, altered, signed by a retired key, replayed.
#[tokio::test(flavor = "multi_thread")]
async fn a_callback_is_believed_only_when_it_is_the_banks_own_and_of_now() {
    let system = shared().await;
    let sale = system.create_sale(terms(5)).await;
    let order = order(&system, &sale, "ann").await;
    let payment = pay(&system, order, "ann").await;
    let good = Callback::of("payment.succeeded", payment, ("order_id", order), 100);
    let retired = Callback { secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", ..good.clone() };
    let stale = Callback { at_s: good.at_s - 310, ..good.clone() };
    let early = Callback { at_s: good.at_s + 310, ..good.clone() };
    for bad in [retired, stale, early] {
        assert_eq!(bad.send(&system).await, 401);
    }
    let spaced = good.body().replace("\":", "\": ");
    assert_eq!(good.send_as(&system, spaced).await, 401, "the same JSON, written anew");
    // Padding that JSON allows: the body may have 4096 bytes.
    let padded = |bytes: usize| format!("{:<bytes$}", good.body());
    assert_eq!(good.send_as(&system, padded(4096)).await, 401);
    assert_eq!(good.send_as(&system, padded(4097)).await, 413);
    let unsigned = Client::new().post(system.url("/api/v1/payments/callbacks/sandbox")).body(good.body());
    assert_eq!(unsigned.send().await.unwrap().status(), 401);
    let elsewhere = Client::new().post(system.url("/api/v1/payments/callbacks/nobank")).body(good.body());
    assert_eq!(elsewhere.send().await.unwrap().status(), 404);
    assert_eq!(status(&system, order, "ann").await, "pending_payment");
    assert_eq!(system.count(JOURNAL, &sale).await, 0);
    // Both keys are valid during their change; a replay has no effect.
    assert_eq!(good.send(&system).await, 200);
    let new_key = Callback { secret: OTHER, ..good.clone() };
    assert_eq!([new_key.send(&system).await, good.send(&system).await], [200, 200]);
    assert_eq!(status(&system, order, "ann").await, "paid");
    assert_eq!(system.count(JOURNAL, &sale).await, 1);
    system.settled(&sale).await;
}

/// A3: a callback that does not fit is set aside, and an alarm reports it.
#[tokio::test(flavor = "multi_thread")]
async fn a_callback_about_another_amount_currency_or_order_changes_nothing() {
    let system = shared().await;
    let sale = system.create_sale(terms(5)).await;
    let (order, other) = (order(&system, &sale, "ann").await, order(&system, &sale, "bob").await);
    let payment = pay(&system, order, "ann").await;
    let good = Callback::of("payment.succeeded", payment, ("order_id", order), 100);
    let with = |change: &dyn Fn(&mut Value)| {
        let mut bad = Callback { id: format!("msg_{}", Uuid::new_v4()), ..good.clone() };
        change(&mut bad.data);
        bad
    };
    let wrong = [
        with(&|data| data["amount_cents"] = json!(1)),
        with(&|data| data["currency"] = json!("EUR")),
        with(&|data| data["order_id"] = json!(other)),
        with(&|data| data["key"] = json!(Uuid::new_v4())),
        with(&|data| *data = json!({ "nothing": "of that" })),
        with(&|data| data["amount_cents"] = json!("100\u{0}")),
    ];
    for bad in &wrong {
        assert_eq!([bad.send(&system).await, bad.send(&system).await], [422, 422], "{}", bad.data);
    }
    for kind in ["webhook.ping", "payout.paid", "payment.refund_requested"] {
        let unknown = Callback::of(kind, payment, ("order_id", order), 100);
        assert_eq!(unknown.send(&system).await, 200, "{kind}: nobody can do anything about it");
    }
    let ids: Vec<&str> = wrong.iter().map(|bad| bad.id.as_str()).collect();
    let aside = sqlx::query_scalar("SELECT count(*) FROM callbacks_set_aside WHERE message_id = ANY($1)").bind(ids);
    let aside: i64 = aside.fetch_one(&system.sql).await.unwrap();
    assert_eq!(aside, 6, "each once");
    assert_eq!(system.count(JOURNAL, &sale).await, 0);
    assert_eq!(status(&system, order, "ann").await, "pending_payment");
    // Another test sets two aside. An alarm for fewer than six is not about these; the next check raises another.
    let of_others = "DELETE FROM alarms WHERE kind = 'set-aside' AND (details->>'messages')::bigint < 6";
    let alarm = "SELECT count(*) FROM alarms WHERE kind = 'set-aside' AND cleared_at IS NULL";
    until(1, || async {
        system.execute(of_others).await;
        system.number(alarm).await
    })
    .await;
    assert_eq!(good.send(&system).await, 200, "the right one is taken all the same");
    assert_eq!(status(&system, order, "ann").await, "paid");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_pays_what_is_not_his_or_not_to_be_paid() {
    let mut system = System::without_workers(&[]).await;
    let sale = system.create_sale(terms(2)).await;
    let accepted = bought(&system, &sale, "ann").await;
    let sandbox = || json!({ "channel": "sandbox" });
    for what in ["payments", "refunds"] {
        let body = if what == "payments" { sandbox() } else { json!({ "reason": "" }) };
        assert_eq!(post(&system, accepted, what, "ann", body.clone()).await.code(), "409 order-not-ready");
        assert_eq!(post(&system, accepted, what, "bob", body.clone()).await.code(), "404 unknown-order");
        assert_eq!(post(&system, Uuid::new_v4(), what, "ann", body).await.code(), "404 unknown-order");
        for bad in [json!({}), json!({ "channel": 5 }), json!({ "reason": "a\nb" }), json!({ "reason": 5, "more": 1 })]
        {
            assert_eq!(post(&system, accepted, what, "ann", bad).await.code(), "400 invalid-request");
        }
    }
    let nowhere = post(&system, accepted, "payments", "ann", json!({ "channel": "nobank" })).await;
    assert_eq!(nowhere.code(), "400 invalid-request");
    system.serve(true).await;
    system.settled(&sale).await;
    assert_eq!(post(&system, accepted, "cancel", "ann", json!({})).await.code(), "200");
    assert_eq!(post(&system, accepted, "payments", "ann", sandbox()).await.code(), "409 illegal-state");
    assert_eq!(system.number("SELECT count(*) FROM payments").await, 0);
    system.finish().await;
}

/// The schema enforces the code's promises against SQL by hand.
#[tokio::test(flavor = "multi_thread")]
async fn the_schema_refuses_what_money_may_not_do() {
    let system = shared().await;
    let sale = system.create_sale(terms(1)).await;
    let order = order(&system, &sale, "ann").await;
    paid(&system, order, "ann").await;
    for (sql, constraint) in [
        (
            "UPDATE payments SET status = 'waiting', ask_at = now(), ended_at = NULL, pays = false WHERE order_id = $1",
            "payments_legal_step",
        ),
        ("UPDATE payments SET amount_cents = 1 WHERE order_id = $1", "payments_unchanging"),
        ("UPDATE payments SET currency = 'JPY' WHERE order_id = $1", "payments_unchanging"),
        ("UPDATE orders SET currency = 'JPY' WHERE id = $1", "orders_amount_fixed"),
        ("UPDATE orders SET amount_cents = 1 WHERE id = $1", "orders_amount_fixed"),
        (
            "UPDATE sales SET currency = 'JPY' WHERE id = (SELECT sale_id FROM orders WHERE id = $1)",
            "sales_terms_fixed",
        ),
        (
            "INSERT INTO payments (id, order_id, channel, amount_cents, currency) VALUES (gen_random_uuid(), $1, 'sandbox', 0, 'CNY')",
            "payments_free_fits",
        ),
        (
            "INSERT INTO payments (id, order_id, channel, amount_cents, currency) VALUES (gen_random_uuid(), $1, 'none', 0, 'CNY')",
            "payments_free_is_paid",
        ),
        ("UPDATE journal SET amount_cents = 1 WHERE order_id = $1", "journal_append_only"),
        ("DELETE FROM journal WHERE order_id = $1", "journal_append_only"),
        (
            "INSERT INTO journal (entry, subject, order_id, debit, credit, amount_cents, currency)
             SELECT entry, subject, order_id, debit, credit, amount_cents, currency FROM journal
             WHERE order_id = $1",
            "journal_once",
        ),
        (
            "INSERT INTO payments (id, order_id, channel, amount_cents, currency, status, pays, ended_at)
             SELECT gen_random_uuid(), order_id, channel, 100, 'CNY', 'succeeded', true, now() FROM payments
             WHERE order_id = $1",
            "payments_one_pays",
        ),
    ] {
        let error = sqlx::query(sql).bind(order).execute(&system.sql).await.unwrap_err();
        assert_eq!(error.as_database_error().and_then(|error| error.constraint()), Some(constraint), "{sql}");
    }
    system.settled(&sale).await;
}
