//! Tests of the command `seckill outflow`.

use std::process::Command;

use serde_json::{Value, json};

use crate::worker_processes::{Works, worker};
use seckill_harness::receiver::{Receiver, Reply};
use seckill_harness::{eventually, until};

fn seckill(works: &Works, words: &[&str]) -> Result<Value, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
    command.arg("outflow").args(words).env_clear().envs(&works.environment).env("RUST_LOG", "error");
    let done = command.output().unwrap();
    if !done.status.success() {
        return Err(String::from_utf8(done.stderr).unwrap());
    }
    Ok(serde_json::from_slice(&done.stdout).unwrap_or(Value::Null))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_is_created_filled_paused_and_retried_by_commands() {
    let works = Works::prepare(&[]).await;
    let receiver = Receiver::scripted(|_, before| Reply::status(if before == 0 { 404 } else { 200 }));
    let run = |words: &[&str]| seckill(&works, words);
    run(&["create", "refunds", "--rate", "1", "--jitter-ms", "20", "--target", &receiver.url()]).unwrap();
    for (words, why) in [
        (["create", "refunds", "--rate", "1", "--target", "http://x"], "already"),
        (["create", "b", "--rate", "0", "--target", "http://x"], "1 to 100"),
        (["create", "b", "--rate", "1", "--target", "ftp://x"], "https://"),
        (["create", "B", "--rate", "1", "--target", "http://x"], "name"),
        (["add", "nope", "--key", "k", "--payload", "{}"], "no outflow"),
        (["add", "refunds", "--key", "", "--payload", "{}"], "key"),
    ] {
        let error = run(&words).expect_err(why);
        assert!(error.contains(why) && error.lines().count() == 1, "{words:?}: {error}");
    }
    run(&["rate", "refunds", "50"]).unwrap();
    run(&["pause", "refunds"]).unwrap();
    let id = run(&["add", "refunds", "--key", "k", "--payload", r#"{"n": 1}"#]).unwrap()["id"].clone();
    let again = ["add", "refunds", "--key", "k", "--payload", "{}", "--id", id.as_str().unwrap()];
    assert_eq!(run(&again).unwrap(), json!({ "id": id, "new": false }));
    let list = run(&["list", "--format", "json"]).unwrap();
    let is = |field: &str| list[0][field].clone();
    assert_eq!(
        (is("rate"), is("jitter_ms"), is("paused"), is("waiting")),
        (json!(50), json!(20), json!(true), json!(1))
    );
    let _workers = works.workers(2).await;
    run(&["resume", "refunds"]).unwrap();
    eventually(|| async {
        let parked = run(&["parked", "--format", "json"])?;
        (parked[0]["id"] == id && parked[0]["error"] == "404 ok").then_some(()).ok_or_else(|| parked.to_string())
    })
    .await;
    assert_eq!(run(&["retry", "refunds"]).unwrap(), json!({ "retried": 1, "more": false }));
    until([("done".to_owned(), 1)], || works.statuses("refunds")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outside_development_mode_nothing_is_sent_without_tls_unless_allowed() {
    let nowhere = format!("amqp://seckill:{}@127.0.0.1:1/%2f", seckill_harness::secret());
    let mut works = Works::prepare(&[("SECKILL_DEV", "0"), ("AMQP_URL", &nowhere)]).await;
    let receiver = Receiver::start();
    let create = |works: &Works, name: &str, target: &str| {
        seckill(works, &["create", name, "--rate", "50", "--jitter-ms", "20", "--target", target])
    };
    let error = create(&works, "plain", &receiver.url()).unwrap_err();
    assert!(error.contains("SECKILL_ALLOW__HTTP_RECEIVERS=1") && error.lines().count() == 1, "{error}");
    create(&works, "encrypted", "https://127.0.0.1:9/take").unwrap();

    // One from the time of development.
    works.channel("c", 50, &receiver).await;
    works.put("c", "k", 0..3).await;
    let at_work = worker(&works.environment, None);
    eventually(|| async {
        let rests = "SELECT count(*) = 1 FROM receivers_away WHERE receiver = 'outflow c' AND pauses_until > now() + interval '20 s'";
        let rests: bool = sqlx::query_scalar(rests).fetch_one(&works.sql).await.map_err(|e| e.to_string())?;
        // A claim is given back after the failure is noted.
        let statuses = works.statuses("c").await;
        (rests && statuses == [("pending".to_owned(), 3)]).then_some(()).ok_or_else(|| format!("{rests} {statuses:?}"))
    })
    .await;
    drop(at_work);
    assert_eq!((receiver.connections(), works.statuses("c").await), (0, vec![("pending".to_owned(), 3)]));
    let attempts: i64 =
        sqlx::query_scalar("SELECT sum(attempts)::bigint FROM outflow_items").fetch_one(&works.sql).await.unwrap();
    assert_eq!(attempts, 0);

    works.environment.insert("SECKILL_ALLOW__HTTP_RECEIVERS".to_owned(), "1".to_owned());
    sqlx::query("UPDATE receivers_away SET pauses_until = now()").execute(&works.sql).await.unwrap();
    let _worker = worker(&works.environment, None);
    until([("done".to_owned(), 3)], || works.statuses("c")).await;
    create(&works, "plain", &receiver.url()).unwrap();
}
