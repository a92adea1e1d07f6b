//! Tests of each switch, and of an operator's calls.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uuid::Uuid;

use crate::bank::Bank;
use futures_util::future::join_all;
use seckill_harness::eventually;

async fn with(switches: Value) -> Bank {
    let bank = Bank::start(&[]).await;
    assert_eq!(bank.calls.switch(switches).await.0, 200);
    bank
}

#[tokio::test(flavor = "multi_thread")]
async fn switches_are_shown_and_set_one_by_one() {
    let bank = Bank::start(&[]).await;
    let (_, before) = bank.calls.get("/v1/admin/switches").await;
    assert_eq!(
        (&before["pay_rate"], &before["confirm_ms"], &before["fail_permille"]),
        (&json!(1000), &json!(20), &json!(0))
    );
    let (status, after) = bank.calls.switch(json!({ "slow_ms": 5 })).await;
    let mut expected = before;
    expected["slow_ms"] = json!(5);
    assert_eq!((status, &after), (200, &expected));
    for bad in [json!({ "fast": 1 }), json!({ "fail_permille": 1001 }), json!([])] {
        assert_eq!(bank.calls.switch(bad.clone()).await.0, 400, "{bad}");
    }
    assert_eq!(bank.calls.get("/v1/admin/switches").await.1, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn fail_permille_refuses_requests_without_effect() {
    let bank = with(json!({ "fail_permille": 1000 })).await;
    let key = Uuid::new_v4();
    assert_eq!(bank.calls.pay(key, 1).await.0, 500);
    assert_eq!(bank.calls.get(&format!("/v1/payments/{key}")).await.0, 404);
    assert_eq!(bank.calls.outcomes("pay").await, ["failed-on-purpose"]);
    bank.calls.switch(json!({ "fail_permille": 0 })).await;
    assert_eq!(bank.calls.pay(key, 1).await.0, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answer_permille_answers_504_after_the_effect() {
    let bank = with(json!({ "lost_answer_permille": 1000, "slow_ms": 100 })).await;
    let (key, began) = (Uuid::new_v4(), Instant::now());
    assert_eq!(bank.calls.pay(key, 1).await.0, 504);
    assert!(began.elapsed() >= Duration::from_millis(100));
    bank.calls.switch(json!({ "lost_answer_permille": 0 })).await;
    assert_eq!(bank.calls.pay(key, 1).await.0, 200, "the payment had taken effect under this key");
    bank.calls.decided("payments", key).await;
    assert_eq!(bank.calls.ledger().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn decline_permille_fails_payments() {
    let bank = with(json!({ "decline_permille": 1000 })).await;
    let key = bank.calls.paid(1).await;
    let callbacks = bank.receiver.wait_for(key, 1).await;
    assert_eq!((&callbacks[0].body["type"], callbacks[0].data("status")), (&json!("payment.failed"), &json!("failed")));
    assert!(bank.calls.ledger().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_are_repeated_and_delayed() {
    let bank = with(json!({ "callback_delay_ms": 400, "repeat_callbacks": 2 })).await;
    let began = Instant::now();
    let key = bank.calls.paid(1).await;
    let callbacks = bank.receiver.wait_for(key, 3).await;
    assert!(callbacks.iter().all(|callback| callback.at - began >= Duration::from_millis(400)));
    assert!(callbacks.iter().all(|callback| callback.id == callbacks[0].id && callback.body == callbacks[0].body));
}

#[tokio::test(flavor = "multi_thread")]
async fn shuffle_callbacks_sends_callbacks_out_of_order() {
    let bank = with(json!({ "callback_delay_ms": 500, "shuffle_callbacks": true, "seed": 7 })).await;
    join_all((0..12).map(|_| bank.calls.pay(Uuid::new_v4(), 1))).await;
    let ids = eventually(|| async {
        let ids: Vec<String> = bank.receiver.seen().into_iter().map(|callback| callback.id).collect();
        if ids.len() == 12 { Ok(ids) } else { Err(format!("{ids:?}")) }
    })
    .await;
    let in_order: Vec<String> = (1..=12).map(|n| format!("msg_{n}")).collect();
    assert_ne!(ids, in_order);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_callback_is_sent_only_by_hand() {
    let bank = with(json!({ "drop_callbacks_permille": 1000 })).await;
    let key = bank.calls.paid(1).await;
    let (_, callback) = bank.calls.get(&format!("/v1/admin/callbacks/{key}")).await;
    assert_eq!(callback["fate"], json!({ "waiting": 0, "delivered": 0, "refused": 0, "given_up": 0 }));
    assert_eq!(bank.calls.admin(&format!("callbacks/{key}/again"), json!({})).await.0, 202);
    let callbacks = bank.receiver.wait_for(key, 1).await;
    assert_eq!((callbacks.len(), Value::from(callbacks[0].id.as_str())), (1, callback["id"].clone()));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_amount_permille_reports_a_wrong_amount() {
    let bank = with(json!({ "wrong_amount_permille": 1000 })).await;
    let key = bank.calls.paid(100).await;
    let callbacks = bank.receiver.wait_for(key, 1).await;
    assert_eq!((callbacks[0].verified, callbacks[0].data("amount_cents")), (Ok(()), &json!(101)));
    assert_eq!(bank.calls.ledger().await[0]["amount_cents"], 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_payment_is_decided_by_hand() {
    let bank = with(json!({ "confirm_ms": 86_400_000 })).await;
    let (paid, failed) = (Uuid::new_v4(), Uuid::new_v4());
    for (key, status) in [(paid, "succeeded"), (failed, "failed")] {
        bank.calls.pay(key, 1).await;
        assert_eq!(bank.calls.admin(&format!("callbacks/{key}/again"), json!({})).await.0, 409);
        let (code, document) = bank.calls.admin(&format!("payments/{key}"), json!({ "status": status })).await;
        assert_eq!((code, &document["status"]), (200, &json!(status)));
        bank.receiver.wait_for(key, 1).await;
    }
    let again = bank.calls.admin(&format!("payments/{failed}"), json!({ "status": "succeeded" })).await;
    assert_eq!((again.0, &again.1["code"]), (409, &json!("already-decided")));
    assert_eq!(bank.calls.admin(&format!("payments/{}", Uuid::new_v4()), json!({ "status": "failed" })).await.0, 404);
    assert_eq!(bank.calls.ledger().await.len(), 1);
    // The callback is sent a second time.
    assert_eq!(bank.calls.admin(&format!("callbacks/{paid}/again"), json!({})).await.0, 202);
    let callbacks = bank.receiver.wait_for(paid, 2).await;
    assert_eq!((&callbacks[0].id, &callbacks[0].body), (&callbacks[1].id, &callbacks[1].body));
}
