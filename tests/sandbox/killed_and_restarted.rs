//! The bank is killed and its file is torn.

use std::fs::OpenOptions;
use std::io::Write;

use serde_json::json;
use uuid::Uuid;

use crate::bank::{Program, file, settings};
use crate::receiver::Receiver;
use seckill_harness::folder::Folder;

/// Pending decisions and callbacks resume after a kill, and a torn last line is removed with a warning.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_bank_goes_on_from_its_file() {
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
    let whole = std::fs::read(file(&folder)).unwrap();
    let mut torn = OpenOptions::new().append(true).open(file(&folder)).unwrap();
    torn.write_all(br#"{"event":"taken","key":"0000"#).unwrap();

    receiver.answer(200);
    let tries = receiver.of(undelivered).len();
    let (mut bank, log) = Program::start(&settings);
    assert!(log.iter().any(|line| line.contains("WARN") && line.contains("torn")), "{log:?}");
    assert!(std::fs::read(file(&folder)).unwrap().starts_with(&whole));
    let callbacks = receiver.wait_for(undelivered, tries + 1).await;
    assert!(callbacks.iter().all(|callback| callback.id == callbacks[0].id && callback.body == callbacks[0].body));
    assert_eq!(bank.calls.pay(pending, 2).await.0, 200);
    bank.calls.decided("payments", pending).await;
    receiver.wait_for(pending, 1).await;
    bank.process.kill();
    let (bank, log) = Program::start(&settings);
    assert!(!log.iter().any(|line| line.contains("WARN")), "{log:?}");
    assert_eq!(bank.calls.ledger().await.len(), 2);
    assert!(bank.process.end().success(), "the bank failed after SIGTERM");
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
