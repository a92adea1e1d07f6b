//! Tests of the switches, and of an operator's calls.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use seckill_harness::wait_until;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::bank::Bank;

#[tokio::test(flavor = "multi_thread")]
async fn switches_are_shown_and_set_one_by_one() {
    let bank = Bank::start(&[]).await;
    let (_, mut expected) = bank.calls.get("/v1/admin/switches").await;
    assert_eq!((&expected["pay_rate"], &expected["confirm_ms"]), (&json!(1000), &json!(20)));
    expected["slow_ms"] = json!(5);
    assert_eq!(bank.calls.switch(json!({ "slow_ms": 5 })).await, (200, expected.clone()));
    for bad in [json!({ "fast": 1 }), json!({ "fail_permille": 1001 }), json!([])] {
        assert_eq!(bank.calls.switch(bad.clone()).await.0, 400, "{bad}");
    }
    assert_eq!(bank.calls.get("/v1/admin/switches").await.1, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_fail_lose_their_answer_or_are_declined() {
    let bank = Bank::start(&[]).await;
    let key = Uuid::new_v4();
    bank.calls.switch(json!({ "fail_permille": 1000 })).await;
    assert_eq!(bank.calls.pay(key, 1).await.0, 500);
    assert_eq!(bank.calls.get(&format!("/v1/payments/{key}")).await.0, 404, "it had an effect");
    assert_eq!(bank.calls.outcomes("pay").await, ["failed-on-purpose"]);

    bank.calls.switch(json!({ "fail_permille": 0, "lost_answer_permille": 1000, "slow_ms": 100 })).await;
    let began = Instant::now();
    assert_eq!(bank.calls.pay(key, 1).await.0, 504);
    assert!(began.elapsed() >= Duration::from_millis(100));
    bank.calls.switch(json!({ "lost_answer_permille": 0, "slow_ms": 0 })).await;
    assert_eq!(bank.calls.pay(key, 1).await.0, 200, "the payment had taken effect under this key");
    bank.calls.decided("payments", key).await;

    bank.calls.switch(json!({ "decline_permille": 1000 })).await;
    let declined = bank.calls.paid(1).await;
    let callback = bank.receiver.wait_for(declined, 1).await.remove(0);
    assert_eq!((&callback.body["type"], callback.data("status")), (&json!("payment.failed"), &json!("failed")));
    assert_eq!(bank.calls.ledger().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_are_late_wrong_repeated_shuffled_or_dropped() {
    let bank = Bank::start(&[]).await;
    bank.calls.switch(json!({ "callback_delay_ms": 400, "repeat_callbacks": 2, "wrong_amount_permille": 1000 })).await;
    let began = Instant::now();
    let key = bank.calls.paid(100).await;
    let callbacks = bank.receiver.wait_for(key, 3).await;
    for callback in &callbacks {
        assert!(callback.at - began >= Duration::from_millis(400));
        assert_eq!((&callback.id, &callback.body), (&callbacks[0].id, &callbacks[0].body));
        assert_eq!((callback.verified, callback.data("amount_cents")), (Ok(()), &json!(101)));
    }
    assert_eq!(bank.calls.ledger().await[0]["amount_cents"], 100);

    let shuffled = json!({ "callback_delay_ms": 500, "repeat_callbacks": 0, "shuffle_callbacks": true, "seed": 7 });
    bank.calls.switch(shuffled).await;
    join_all((0..12).map(|_| bank.calls.pay(Uuid::new_v4(), 1))).await;
    let seen = wait_until(|| async { bank.receiver.seen() }, |seen| seen.len() == 3 + 12).await;
    let number = |id: &str| id.strip_prefix("msg_").unwrap().parse::<u32>().unwrap();
    assert!(!seen[3..].iter().map(|callback| number(&callback.id)).is_sorted(), "{seen:?}");

    bank.calls.switch(json!({ "callback_delay_ms": 0, "drop_callbacks_permille": 1000 })).await;
    let key = bank.calls.paid(1).await;
    let (_, callback) = bank.calls.get(&format!("/v1/admin/callbacks/{key}")).await;
    assert_eq!(callback["fate"], json!({ "waiting": 0, "delivered": 0, "refused": 0, "given_up": 0 }));
    assert_eq!(bank.calls.admin(&format!("callbacks/{key}/again"), json!({})).await.0, 202);
    let callbacks = bank.receiver.wait_for(key, 1).await;
    assert_eq!((callbacks.len(), Value::from(callbacks[0].id.as_str())), (1, callback["id"].clone()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_payment_is_decided_by_hand() {
    let bank = Bank::start(&[("SECKILL_SANDBOX__CONFIRM_MS", "86400000")]).await;
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
