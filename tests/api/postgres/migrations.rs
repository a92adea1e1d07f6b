//! `seckill migrate` (docs/install.md): in many processes at once, beside transactions on the changed tables, and against a newer database.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;

use futures_util::future::join_all;
use parking_lot::Mutex;
use seckill_harness::{Environment, PATIENCE, System, environment, eventually, quiet_environment, wait_until};
use sqlx::migrate::{Migrate, Migrator};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, query, query_scalar, raw_sql};
use tokio::process::Command;
use tokio::time::timeout;
use uuid::Uuid;

/// The next migration refers to orders, and so needs that table for a moment without writers.
const BEFORE_MONEY: i64 = 4;
/// Locks the table orders as every write to it does.
const WRITE: &str = "UPDATE orders SET updated_at = now() WHERE false";
const WAITS_FOR_A_TABLE: &str = "SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                                 WHERE datname = current_database() AND locktype = 'relation' AND NOT granted
                                   AND mode = 'ShareRowExclusiveLock'";
const WAITS_FOR_ANOTHER: &str = "SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                                 WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted";

async fn migrations() -> Migrator {
    Migrator::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations")).await.unwrap()
}

async fn with_empty_database(mut environment: Environment) -> Environment {
    let (server, name) =
        (environment["DATABASE_URL"].rsplit_once('/').unwrap().0, format!("t{}", Uuid::new_v4().simple()));
    let (url, create) = (format!("{server}/{name}"), format!("CREATE DATABASE {name}"));
    let mut maintenance = PgConnection::connect(&environment["DATABASE_URL"]).await.unwrap();
    raw_sql(AssertSqlSafe(create)).execute(&mut maintenance).await.unwrap();
    environment.insert("DATABASE_URL".to_owned(), url);
    environment
}

fn seckill(environment: &Environment, command: &str) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_seckill"));
    program.arg(command).env_clear().envs(environment).env("RUST_LOG", "error").kill_on_drop(true);
    program.stdin(Stdio::null());
    program
}

async fn succeeds(mut command: Command) -> Result<(), String> {
    let done = command.output().await.unwrap();
    let said = || format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    done.status.success().then_some(()).ok_or_else(said)
}

/// Waits until a second try waits for a lock: the first try has given up.
async fn second_try_waits(sql: &PgPool, waiting: &'static str) {
    let seen = Mutex::new(BTreeSet::new());
    eventually(|| async {
        let pids: Vec<i32> = query_scalar(waiting).fetch_all(sql).await.map_err(|error| error.to_string())?;
        let mut seen = seen.lock();
        seen.extend(pids);
        (seen.len() >= 2).then_some(()).ok_or_else(|| format!("{} tries have waited", seen.len()))
    })
    .await;
}

async fn applied(sql: &PgPool) -> Vec<i64> {
    query_scalar("SELECT version FROM _sqlx_migrations WHERE success ORDER BY version").fetch_all(sql).await.unwrap()
}

/// Each migration is applied once, and no process fails because another was faster.
#[tokio::test(flavor = "multi_thread")]
async fn eight_at_once_migrate_a_new_database() {
    let environment = with_empty_database(quiet_environment().await).await;
    let outcomes = join_all((0..8).map(|_| succeeds(seckill(&environment, "migrate")))).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:#?}");
    let sql = PgPool::connect(&environment["DATABASE_URL"]).await.unwrap();
    let files: Vec<i64> = migrations().await.iter().map(|migration| migration.version).collect();
    assert_eq!(applied(&sql).await, files);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_out_of_statements_does_not_end_a_migration() {
    let mut environment = with_empty_database(quiet_environment().await).await;
    environment.insert("SECKILL_DATABASE__STATEMENT_TIMEOUT_MS".to_owned(), "300".to_owned());
    let sql = PgPool::connect(&environment["DATABASE_URL"]).await.unwrap();
    let mut another = PgConnection::connect(&environment["DATABASE_URL"]).await.unwrap();
    another.lock().await.unwrap();
    let waiting = tokio::spawn(succeeds(seckill(&environment, "migrate")));
    second_try_waits(&sql, WAITS_FOR_ANOTHER).await;
    another.unlock().await.unwrap();
    waiting.await.unwrap().unwrap();
    assert!(!applied(&sql).await.is_empty());
}

/// A migration waits half a second for a table that an open transaction uses, lets all others pass, and tries again.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_migration_keeps_no_statement_out() {
    let environment = with_empty_database(quiet_environment().await).await;
    let sql = PgPool::connect(&environment["DATABASE_URL"]).await.unwrap();
    migrations().await.run_to(BEFORE_MONEY, &sql).await.unwrap();
    let mut open = sql.begin().await.unwrap();
    query(WRITE).execute(&mut *open).await.unwrap();
    let migrating = tokio::spawn(succeeds(seckill(&environment, "migrate")));
    second_try_waits(&sql, WAITS_FOR_A_TABLE).await;
    for _ in 0..3 {
        // The transaction is open. A migration that waited for its end would block this statement for ever.
        timeout(PATIENCE, query(WRITE).execute(&sql)).await.expect("the statement is not kept out").unwrap();
    }
    let files: Vec<i64> = migrations().await.iter().map(|migration| migration.version).collect();
    assert_eq!(applied(&sql).await, files[..4]);
    open.commit().await.unwrap();
    migrating.await.unwrap().unwrap();
    assert_eq!(applied(&sql).await, files);
}

/// A rollout without `migrate` stays unready. A newer database is fine.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_is_ready_only_with_all_its_migrations() {
    let system = System::start().await;
    let ready = async |wanted: u16| {
        let right = |(status, body): &(u16, serde_json::Value)| *status == wanted && body["schema"] == (wanted == 200);
        wait_until(|| system.get("/readyz", None), right).await;
    };
    ready(200).await;
    for lost in ["(SELECT max(version) FROM _sqlx_migrations)", "1"] {
        let set_aside = format!("UPDATE _sqlx_migrations SET success = false WHERE version = {lost}");
        system.execute(set_aside).await;
        ready(503).await;
        raw_sql("UPDATE _sqlx_migrations SET success = true").execute(&system.sql).await.unwrap();
        ready(200).await;
    }
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                 VALUES (99999999, 'newer', true, '', 0)";
    raw_sql(newer).execute(&system.sql).await.unwrap();
    ready(200).await;
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_database_has_no_account_and_no_token() {
    let environment = environment(&[]).await;
    succeeds(seckill(&environment, "seed")).await.unwrap();
    let sql = PgPool::connect(&environment["DATABASE_URL"]).await.unwrap();
    for count in ["SELECT count(*) FROM accounts", "SELECT count(*) FROM apps WHERE token_hash IS NOT NULL"] {
        let known: i64 = query_scalar(count).fetch_one(&sql).await.unwrap();
        assert_eq!(known, 0, "{count}");
    }
}
