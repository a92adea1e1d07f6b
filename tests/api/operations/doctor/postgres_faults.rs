//! Faults of PostgreSQL, planted in a private server.

use std::time::Duration;

use seckill::doctor::Verdict::{Fail, Pass, Unknown, Warn};
use seckill_harness::{Environment, environment, eventually};

use super::{Look, config, shows_in_time};
use crate::postgres::session_settings::PgBouncer;
use seckill_harness::own_postgres::OwnPostgres;

/// The settings of a system whose ledger is on this server.
async fn system_on(postgres: &OwnPostgres) -> Environment {
    environment(&[("DATABASE_URL", &postgres.url("postgres"))]).await
}

/// Settings under which a commit is not durable, wherever they are set, and a read-only database.
#[tokio::test(flavor = "multi_thread")]
async fn commits_that_are_not_durable_are_found() {
    let postgres = OwnPostgres::start(&[]).await;
    let environment = system_on(&postgres).await;
    let look = async || Look::with(&environment, &[]).await;
    let healthy = look().await;
    for check in healthy.of("postgres").filter(|check| check.name != "postgres.role") {
        assert_eq!(check.verdict, Pass, "{check:#?}");
    }
    for (setting, check) in [("fsync", "postgres.fsync"), ("full_page_writes", "postgres.full-page-writes")] {
        postgres.set(setting, "off").await;
        look().await.shows(check, Fail, "is off");
        postgres.set(setting, "on").await;
    }
    // As our role sees it, which may differ from the server's setting.
    for (plant, repair) in [
        ("ALTER DATABASE postgres SET synchronous_commit = off", "ALTER DATABASE postgres RESET synchronous_commit"),
        ("ALTER ROLE seckill SET synchronous_commit = off", "ALTER ROLE seckill RESET synchronous_commit"),
    ] {
        postgres.execute(plant).await;
        look().await.shows("postgres.synchronous-commit", Fail, "synchronous_commit is off for seckill");
        postgres.execute(repair).await;
    }
    postgres.execute("ALTER DATABASE postgres SET default_transaction_read_only = on").await;
    look().await.shows("postgres.primary", Fail, "read-only");
}

/// Replicas without our last commits, commits that wait for no replica or for ever, and a replica instead of the primary.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_without_our_last_commits_are_found() {
    let postgres = OwnPostgres::start(&[]).await;
    let environment = system_on(&postgres).await;
    let look = async || Look::with(&environment, &[]).await;
    let shows = async |verdict, found| shows_in_time(look, "postgres.replicas", verdict, found).await;
    shows(Pass, "no replica").await;
    let replica = postgres.replica("copy").await;
    shows(Fail, "1 asynchronous replicas are attached: copy").await;

    postgres.set("synchronous_standby_names", "copy").await;
    shows(Pass, "commits wait for replicas: copy").await;
    postgres.set("synchronous_commit", "remote_write").await;
    shows(Warn, "not flushed").await;
    postgres.set("synchronous_commit", "local").await;
    shows(Fail, "commits wait for no replica").await;
    postgres.set("synchronous_commit", "on").await;
    let later = postgres.replica("later").await;
    shows(Warn, "asynchronous beside the synchronous replicas: later").await;

    // A role without pg_read_all_stats sees only that replicas exist.
    postgres.execute("CREATE ROLE plain LOGIN").await;
    let plain = postgres.url("postgres").replace("seckill@", "plain@");
    let look = Look::with(&environment, &[("DATABASE_URL", &plain)]).await;
    look.shows("postgres.replicas", Unknown, "does not see");
    look.shows("postgres.role", Pass, "plain");

    let look = Look::with(&environment, &[("DATABASE_URL", &replica.url("postgres"))]).await;
    look.shows("postgres.primary", Fail, "the server is a replica");
    drop((replica, later));
    shows(Fail, "every commit waits").await;
}

/// A pooler that shares sessions.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_is_found() {
    let postgres = OwnPostgres::start(&[]).await;
    let environment = system_on(&postgres).await;
    let pooler = PgBouncer::before(&postgres, true).await;
    let url = format!("postgres://seckill@127.0.0.1:{}/postgres", pooler.port);
    let config = config(&environment, &[("DATABASE_URL", &url)]);
    // The doctor waits half of the time for a missing notice. On a slow machine the check is repeated.
    let shared = eventually(|| async {
        let look = Look::within(&config, Duration::from_secs(6)).await;
        let unknown = look.of("postgres").find(|check| check.verdict == Unknown).map(|check| format!("{check:#?}"));
        unknown.map_or(Ok(look), Err)
    })
    .await;
    shared.shows("postgres.sessions", Fail, "two connections share a session");
    shared.shows("postgres.notices", Warn, "does not reach");
}

/// A schema older or newer than this program, or not its own; too few connections; a role with all rights.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_does_not_fit_the_program_is_found() {
    let postgres = OwnPostgres::start(&[("max_connections", "50"), ("superuser_reserved_connections", "3")]).await;
    let environment = system_on(&postgres).await;
    let look = async || Look::with(&environment, &[]).await;
    look().await.shows("postgres.role", Warn, "seckill is SUPERUSER");
    for (plant, verdict, found) in [
        (
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
          VALUES (9999, 'of a later version', true, '', 0)",
            Warn,
            "9999",
        ),
        ("UPDATE _sqlx_migrations SET success = false WHERE version = 3", Fail, "halfway: 3"),
        ("UPDATE _sqlx_migrations SET success = true, checksum = '' WHERE version = 3", Fail, "another text: 3"),
        ("DELETE FROM _sqlx_migrations WHERE version = 3", Fail, "missing: 3"),
        ("DROP TABLE _sqlx_migrations", Fail, "missing: 1, 2, 3, 4, 5 and "),
    ] {
        postgres.execute(plant).await;
        look().await.shows("postgres.schema", verdict, found);
    }

    // 47 are for us: a process of the tests opens up to 14, and one with this setting 26.
    look().await.shows("postgres.connections", Warn, "room for 3");
    let greedy = Look::with(&environment, &[("SECKILL_DATABASE__MAX_CONNECTIONS", "20")]).await;
    greedy.shows("postgres.connections", Fail, "room for 1");
    postgres.execute("ALTER DATABASE postgres CONNECTION LIMIT 20").await;
    look().await.shows("postgres.connections", Fail, "20 connections for us");
}
