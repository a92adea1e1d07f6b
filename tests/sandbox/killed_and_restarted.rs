//! The bank is killed and its file is torn. No answered request may be lost.

use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Mutex;

use futures_util::future::join_all;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::bank::{Program, file, payment, settings};
use crate::receiver::Receiver;
use seckill_harness::eventually;
use seckill_harness::folder::Folder;

/// Sends payments until the bank is gone. Stores the answers by key.
async fn crowd(bank: &Program, answered: &Mutex<HashMap<Uuid, Value>>) {
    let buyer = async || {
        loop {
            let key = Uuid::new_v4();
            let Ok(answer) = bank.calls.signed("/v1/payments", key, &payment(7).to_string()).send().await else {
                return;
            };
            let Ok(document) = answer.json().await else { return };
            answered.lock().unwrap().insert(key, document);
        }
    };
    join_all((0..16).map(|_| buyer())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_loses_no_answered_payment_and_repeats_none() {
    let (folder, receiver) = (Folder::new("sandbox"), Receiver::start());
    let settings = settings(&folder, &receiver, &[("SECKILL_SANDBOX__PAY_RATE", "100000")]);
    let answered = Mutex::new(HashMap::new());
    for _ in 0..3 {
        let (mut bank, _) = Program::start(&settings);
        let before = answered.lock().unwrap().len();
        let kill = bank.killer();
        let killing = eventually(|| async {
            let more = answered.lock().unwrap().len() - before;
            if more >= 100 { Ok(()) } else { Err(format!("{more} answered")) }
        });
        let killing = async {
            killing.await;
            kill();
        };
        tokio::join!(crowd(&bank, &answered), killing);
        bank.process.kill();
    }

    let answered = answered.into_inner().unwrap();
    let (bank, _) = Program::start(&settings);
    for (key, document) in &answered {
        let (status, now) = bank.calls.get(&format!("/v1/payments/{key}")).await;
        assert_eq!((status, &now["id"]), (200, &document["id"]), "{key}");
        bank.calls.decided("payments", *key).await;
    }
    let ids: HashSet<&str> = answered.values().map(|document| document["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), answered.len(), "a payment number was used twice");

    let (mut after, mut moved) = (json!(0), Vec::new());
    while !after.is_null() {
        let (_, page) = bank.calls.get(&format!("/v1/ledger?after={after}&limit=1000")).await;
        moved.extend(page["entries"].as_array().unwrap().iter().map(|entry| entry["key"].as_str().unwrap().to_owned()));
        after = page["next"].clone();
    }
    let once: HashSet<&str> = moved.iter().map(String::as_str).collect();
    assert_eq!(once.len(), moved.len(), "a payment is in the ledger twice");
    assert!(answered.keys().all(|key| once.contains(key.to_string().as_str())));

    // Each payment's callback finally arrives, always under the same id.
    eventually(|| async {
        let reported: HashSet<String> =
            receiver.seen().iter().map(|callback| callback.data("key").as_str().unwrap().to_owned()).collect();
        let missing = moved.iter().filter(|key| !reported.contains(*key)).count();
        if missing == 0 { Ok(()) } else { Err(format!("{missing} callbacks are missing")) }
    })
    .await;
    let pairs: HashSet<(String, String)> =
        receiver.seen().into_iter().map(|c| (c.data("key").to_string(), c.id)).collect();
    let keys: HashSet<&String> = pairs.iter().map(|(key, _)| key).collect();
    assert_eq!(keys.len(), pairs.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_decisions_and_callbacks_resume_after_a_kill() {
    let (folder, receiver) = (Folder::new("sandbox"), Receiver::start());
    let settings = settings(&folder, &receiver, &[]);
    let (mut bank, _) = Program::start(&settings);
    receiver.answer(500);
    let undelivered = bank.calls.paid(1).await;
    receiver.wait_for(undelivered, 1).await;
    bank.calls.switch(json!({ "confirm_ms": 2000 })).await;
    let pending = Uuid::new_v4();
    bank.calls.pay(pending, 2).await;
    bank.process.kill();

    receiver.answer(200);
    let tries = receiver.of(undelivered).len();
    let (bank, _) = Program::start(&settings);
    let callbacks = receiver.wait_for(undelivered, tries + 1).await;
    assert!(callbacks.iter().all(|callback| callback.id == callbacks[0].id && callback.body == callbacks[0].body));
    assert_eq!(bank.calls.pay(pending, 2).await.0, 200);
    bank.calls.decided("payments", pending).await;
    receiver.wait_for(pending, 1).await;
    assert!(bank.process.end().success(), "the bank failed after SIGTERM");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_last_line_is_removed_with_a_warning() {
    let (folder, receiver) = (Folder::new("sandbox"), Receiver::start());
    let settings = settings(&folder, &receiver, &[]);
    let (mut bank, _) = Program::start(&settings);
    let key = bank.calls.paid(1).await;
    receiver.wait_for(key, 1).await;
    bank.process.kill();
    let whole = std::fs::read(file(&folder)).unwrap();
    let mut torn = OpenOptions::new().append(true).open(file(&folder)).unwrap();
    torn.write_all(br#"{"event":"taken","key":"0000"#).unwrap();

    let (mut bank, log) = Program::start(&settings);
    assert!(log.iter().any(|line| line.contains("WARN") && line.contains("torn")), "{log:?}");
    assert!(std::fs::read(file(&folder)).unwrap().starts_with(&whole));
    assert_eq!(bank.calls.get(&format!("/v1/payments/{key}")).await.1["status"], "succeeded");
    bank.calls.paid(2).await;
    bank.process.kill();
    let (bank, log) = Program::start(&settings);
    assert!(!log.iter().any(|line| line.contains("WARN")), "{log:?}");
    assert_eq!(bank.calls.ledger().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_cannot_use_one_file() {
    let (folder, receiver) = (Folder::new("sandbox"), Receiver::start());
    let settings = settings(&folder, &receiver, &[]);
    let (bank, _) = Program::start(&settings);
    let ended = Program::command(&settings).output().unwrap();
    let log = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success() && log.contains("in use"), "{log}");
    drop(bank);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_secret_the_bank_starts_only_in_development_mode() {
    let (folder, receiver) = (Folder::new("sandbox"), Receiver::start());
    let mut settings = settings(&folder, &receiver, &[]);
    settings.remove("SECKILL_SANDBOX__SECRET");
    let ended = Program::command(&settings).output().unwrap();
    assert!(!ended.status.success());
    assert!(String::from_utf8(ended.stderr).unwrap().contains("sandbox.secret"));
    settings.insert("SECKILL_DEV".to_owned(), "1".to_owned());
    let (bank, _) = Program::start(&settings);
    assert!(bank.process.end().success());
}
