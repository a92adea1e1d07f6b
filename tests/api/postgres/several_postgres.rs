//! Several PostgreSQL servers in the address: only the primary is used, and never a replaced one (F33).

use std::collections::HashMap;
use std::time::Duration;

use seckill::app::stores;
use seckill_config::Config;
use seckill_harness::eventually;
use seckill_harness::own_postgres::OwnPostgres;
use seckill_postgres::Ledger;
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tokio::time::timeout;

/// How long the test checks that no server is available. The handle itself searches for much longer, for a busy machine.
const WATCHED: Duration = Duration::from_secs(3);

fn ledger(ports: &[u16]) -> Ledger {
    let servers: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let environment: HashMap<String, String> = [
        ("REDIS_URL", "redis://127.0.0.1:1/".to_owned()),
        ("AMQP_URL", "amqp://127.0.0.1:1/%2f".to_owned()),
        ("DATABASE_URL", format!("postgres://seckill@{}/postgres", servers.join(","))),
        ("SECKILL_DATABASE__ACQUIRE_TIMEOUT_MS", "20000".to_owned()),
        ("SECKILL_DEV", "1".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    stores(&Config::read(&environment).unwrap()).unwrap().ledger
}

/// Writes a line, wherever the handle leads.
async fn write(ledger: &Ledger, subject: &str) -> Result<(), String> {
    ledger.accounts.record("test", "write", subject, json!({})).await.map_err(|error| error.to_string())
}

async fn lines(server: &OwnPostgres, subject: &str) -> i64 {
    let mut connection = PgConnection::connect(&server.url("postgres")).await.unwrap();
    let count = sqlx::query_scalar("SELECT count(*) FROM audit_log WHERE subject = $1").bind(subject);
    count.fetch_one(&mut connection).await.unwrap()
}

/// The old primary continues to accept writes, as after a network partition. A handle that knows the new primary does not go back.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_replaced_and_comes_back_is_not_used() {
    let old = OwnPostgres::start(&[]).await;
    let mut new = old.replica("new").await;
    // The first server in the address is in recovery.
    let ledger = ledger(&[new.port(), old.port()]);
    ledger.migrate().await.unwrap();
    write(&ledger, "before").await.unwrap();
    assert_eq!(lines(&old, "before").await, 1);

    new.promote().await;
    eventually(|| async {
        write(&ledger, "meanwhile").await?;
        (lines(&new, "meanwhile").await > 0).then_some(()).ok_or_else(|| "still at the old primary".to_owned())
    })
    .await;
    // As many at once as there are connections, so that each connection is used.
    let together = (0..16).map(|_| eventually(|| write(&ledger, "after")));
    futures_util::future::join_all(together).await;
    // A write with a late answer was repeated, and may be there twice.
    assert_eq!(lines(&old, "after").await, 0);
    assert!(lines(&new, "after").await >= 16);

    // The new primary is away: no server is better than the old one.
    new.kill();
    for _ in 0..3 {
        let written = timeout(WATCHED, write(&ledger, "away")).await;
        assert!(!matches!(written, Ok(Ok(()))), "only the old primary answers");
    }
    new.restart().await;
    eventually(|| write(&ledger, "back")).await;
    assert_eq!((lines(&old, "away").await, lines(&old, "back").await), (0, 0));
    assert!(lines(&new, "back").await > 0);
    ledger.close().await;
}
