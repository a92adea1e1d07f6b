//! The promises of each call.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::bank::{Bank, payment, send};
use seckill_harness::{until, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_is_taken_then_decided_then_reported_in_a_signed_callback() {
    let bank = Bank::start(&[]).await;
    let key = Uuid::new_v4();
    let (status, document) = bank.calls.pay(key, 100).await;
    let mut expected = json!({
        "key": key, "id": "pay_1", "status": "pending",
        "order_id": Uuid::from_u128(7), "amount_cents": 100, "currency": "CNY",
    });
    assert_eq!((status, &document), (202, &expected));
    expected["status"] = "succeeded".into();
    assert_eq!(bank.calls.decided("payments", key).await, expected);

    let callback = bank.receiver.wait_for(key, 1).await.remove(0);
    assert_eq!(callback.verified, Ok(()));
    assert_eq!((callback.id.as_str(), &callback.body["type"]), ("msg_1", &json!("payment.succeeded")));
    assert_eq!(callback.body["data"], expected);
    assert!(chrono::DateTime::parse_from_rfc3339(callback.body["timestamp"].as_str().unwrap()).is_ok());

    let ledger = bank.calls.ledger().await;
    assert_eq!(ledger.len(), 1);
    assert_eq!((&ledger[0]["seq"], &ledger[0]["kind"], &ledger[0]["key"]), (&json!(1), &json!("payment"), &json!(key)));
    assert!(ledger[0]["applied_at_us"].as_i64().unwrap() > 1_600_000_000_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_one_effect_and_accepts_one_body() {
    let bank = Bank::start(&[]).await;
    let key = Uuid::new_v4();
    // Twenty requests with the same key at once.
    let answers = join_all((0..20).map(|_| bank.calls.pay(key, 100))).await;
    let taken = answers.iter().filter(|(status, _)| *status == 202).count();
    let repeated = answers.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!((taken, repeated), (1, 19));
    assert!(answers.iter().all(|(_, document)| document["id"] == "pay_1"));

    bank.calls.decided("payments", key).await;
    let (status, document) = bank.calls.pay(key, 100).await;
    assert_eq!((status, &document["status"]), (200, &json!("succeeded")));
    let (status, problem) = bank.calls.pay(key, 101).await;
    assert_eq!((status, &problem["code"]), (422, &json!("idempotency-mismatch")));
    assert_eq!(bank.calls.ledger().await.len(), 1);

    let mut outcomes = bank.calls.outcomes("pay").await;
    assert_eq!((outcomes.pop().unwrap().as_str(), outcomes.len()), ("refused", 21));
    assert_eq!(outcomes.iter().filter(|outcome| *outcome == "repeated").count(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn refunds_never_exceed_their_payment() {
    let bank = Bank::start(&[]).await;
    let refused = async |key, cents| {
        let (status, problem) = bank.calls.refund(Uuid::new_v4(), key, cents).await;
        (status, problem["code"].as_str().unwrap_or_default().to_owned())
    };
    let not_refundable = (422, "not-refundable".to_owned());
    assert_eq!(refused(Uuid::new_v4(), 1).await, not_refundable, "an unknown payment");

    bank.calls.switch(json!({ "confirm_ms": 86_400_000 })).await;
    let pending = Uuid::new_v4();
    bank.calls.pay(pending, 100).await;
    assert_eq!(refused(pending, 1).await, not_refundable, "a pending payment");
    bank.calls.switch(json!({ "confirm_ms": 20 })).await;

    let paid = bank.calls.paid(100).await;
    let body = json!({ "payment_key": paid, "amount_cents": 1, "currency": "EUR" });
    assert_eq!(bank.calls.post("/v1/refunds", Uuid::new_v4(), &body).await.0, 422, "another currency");
    assert_eq!(refused(paid, 101).await, not_refundable, "more than the payment");

    // A refund that fails leaves its amount refundable.
    let (part, failed) = (Uuid::new_v4(), Uuid::new_v4());
    assert_eq!(bank.calls.refund(part, paid, 60).await.0, 202);
    assert_eq!(refused(paid, 41).await, not_refundable, "pending refunds count");
    bank.calls.decided("refunds", part).await;
    bank.calls.switch(json!({ "decline_permille": 1000, "decline_reason": "closed-account" })).await;
    assert_eq!(bank.calls.refund(failed, paid, 40).await.0, 202);
    let declined = bank.calls.decided("refunds", failed).await;
    assert_eq!((&declined["status"], &declined["reason"]), (&json!("failed"), &json!("closed-account")));
    bank.calls.switch(json!({ "decline_permille": 0 })).await;
    let rest = Uuid::new_v4();
    let (status, document) = bank.calls.refund(rest, paid, 40).await;
    assert_eq!((status, &document["id"], &document["payment_key"]), (202, &json!("ref_3"), &json!(paid)));
    bank.calls.decided("refunds", rest).await;
    assert_eq!(bank.calls.refund(rest, paid, 40).await.0, 200, "a repeated refund, although nothing is left to refund");
    assert_eq!(refused(paid, 1).await, not_refundable);

    let callbacks = bank.receiver.wait_for(failed, 1).await;
    assert_eq!(callbacks[0].body["type"], "refund.failed");
    let amounts: Vec<Value> = bank.calls.ledger().await.iter().map(|entry| entry["amount_cents"].clone()).collect();
    assert_eq!(amounts, [100, 60, 40]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_valid_signature_is_refused_and_not_counted() {
    let bank = Bank::start(&[("SECKILL_SANDBOX__PAY_RATE", "1")]).await;
    let (key, body) = (Uuid::new_v4(), payment(100).to_string());
    let unsigned = || bank.calls.request(Method::POST, "/v1/payments").header("idempotency-key", key.to_string());
    let signed = || bank.calls.signed("/v1/payments", key, &body);
    let mut changed = signed();
    changed = changed.body(payment(1).to_string());
    let old = unsigned().header("webhook-id", "1").header("webhook-timestamp", "1").header("webhook-signature", "v1,");
    for request in [unsigned().body(body.clone()), changed, old.body(body.clone())] {
        let (status, problem) = send(request).await;
        assert_eq!((status, &problem["code"]), (401, &json!("unauthenticated")));
    }
    assert_eq!(bank.calls.outcomes("pay").await, [""; 0], "unsigned requests were counted");
    assert_eq!(bank.calls.get(&format!("/v1/payments/{key}")).await.0, 404);
    assert_eq!(send(signed()).await.0, 202, "unsigned requests used up the rate");
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_calls_are_refused_and_have_no_effect() {
    let bank = Bank::start(&[]).await;
    let key = Uuid::new_v4();
    for body in [
        "",
        "[]",
        r#"{"order_id":"7","amount_cents":1,"currency":"CNY"}"#,
        r#"{"order_id":"00000000-0000-0000-0000-000000000007","amount_cents":-1,"currency":"CNY"}"#,
        r#"{"order_id":"00000000-0000-0000-0000-000000000007","amount_cents":1,"currency":"cny"}"#,
        r#"{"order_id":"00000000-0000-0000-0000-000000000007","amount_cents":1,"currency":"CNY","tip":1}"#,
    ] {
        let (status, problem) = send(bank.calls.signed("/v1/payments", key, body)).await;
        assert_eq!((status, &problem["code"]), (400, &json!("invalid-request")), "{body}");
    }
    let big = " ".repeat(16 * 1024 + 1);
    let (status, problem) = send(bank.calls.signed("/v1/payments", key, &big)).await;
    assert_eq!((status, &problem["code"]), (413, &json!("body-too-large")));
    for (path, status) in [
        ("/v1/payments/x", 400),
        ("/v1/refunds/00000000-0000-0000-0000-000000000007", 404),
        ("/v1/ledger?limit=1001", 400),
        ("/v1/ledger?until=1", 400),
        ("/v1/arrivals", 400),
        ("/v1/arrivals?kind=gift", 400),
        ("/v1/refunds", 405),
        ("/v2", 404),
    ] {
        let (seen, problem) = bank.calls.get(path).await;
        assert_eq!(seen, status, "{path}");
        assert!(problem["code"].is_string() && problem["detail"].is_string(), "{path}: {problem}");
    }
    assert_eq!(bank.calls.get(&format!("/v1/payments/{key}")).await.0, 404);
}

/// The sliding second itself is tested in `tools/sandbox/src/limit.rs`.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_above_the_rate_is_refused_without_effect() {
    let bank = Bank::start(&[("SECKILL_SANDBOX__PAY_RATE", "1")]).await;
    let (refused, answer) = wait_until(
        || async {
            let key = Uuid::new_v4();
            (key, bank.calls.signed("/v1/payments", key, &payment(1).to_string()).send().await.unwrap())
        },
        |(_, answer)| answer.status() == 429,
    )
    .await;
    assert_eq!(answer.headers()["retry-after"], "1");
    assert_eq!(bank.calls.get(&format!("/v1/payments/{refused}")).await.0, 404);
    // The peak counts refused requests too, although they do not use up the rate. Refunds have a rate of their own.
    let (_, peak) = bank.calls.get("/v1/arrivals/peak?kind=pay").await;
    assert_eq!(peak["count"].as_u64(), Some(bank.calls.outcomes("pay").await.len() as u64));
    assert_eq!(bank.calls.refund(Uuid::new_v4(), Uuid::new_v4(), 1).await.0, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_and_the_arrivals_are_read_page_by_page() {
    let bank = Bank::start(&[]).await;
    for amount in 1..=5 {
        bank.calls.paid(amount).await;
    }
    for (path, list, field) in
        [("ledger?limit=2", "entries", "amount_cents"), ("arrivals?kind=pay&limit=5", "arrivals", "n")]
    {
        let (mut after, mut seen) = (json!(0), Vec::new());
        while !after.is_null() {
            let (_, page) = bank.calls.get(&format!("/v1/{path}&after={after}")).await;
            seen.extend(page[list].as_array().unwrap().iter().map(|entry| entry[field].clone()));
            after = page["next"].clone();
        }
        assert_eq!(seen, [1, 2, 3, 4, 5], "{list}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_is_sent_under_one_id_until_it_is_delivered_or_refused() {
    let bank = Bank::start(&[]).await;
    bank.receiver.answer(503);
    let key = bank.calls.paid(100).await;
    bank.receiver.wait_for(key, 3).await;
    let fate = async |key: Uuid| bank.calls.get(&format!("/v1/admin/callbacks/{key}")).await.1["fate"].clone();
    assert_eq!(fate(key).await, json!({ "waiting": 1, "delivered": 0, "refused": 0, "given_up": 0 }));
    bank.receiver.answer(204);
    until(json!(1), || async { fate(key).await["delivered"].clone() }).await;
    let seen = bank.receiver.of(key);
    assert!(seen.iter().all(|callback| callback.id == seen[0].id && callback.body == seen[0].body));
    // With jitter, the first pause is at least half of 250 ms and the second at least half of 500 ms.
    assert!(seen[1].at - seen[0].at >= Duration::from_millis(124));
    assert!(seen[2].at - seen[1].at >= Duration::from_millis(249));

    bank.receiver.answer(422);
    let refused = bank.calls.paid(100).await;
    let expected = json!({ "waiting": 0, "delivered": 0, "refused": 1, "given_up": 0 });
    until(expected, || fate(refused)).await;
    assert_eq!(bank.receiver.of(refused).len(), 1);
}
