//! `seckill migrate` (docs/install.md): from the oldest schema that an upgrade may start from, beside transactions of the version
//! that wrote it, and from many processes at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use futures_util::future::join_all;
use parking_lot::Mutex;
use seckill::domain::ids::SaleId;
use seckill_harness::{Environment, PATIENCE, Sale, System, eventually, quiet_environment};
use sqlx::migrate::{Migrate, Migrator};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, query, query_scalar, raw_sql};
use tokio::process::Command;
use tokio::time::timeout;
use uuid::Uuid;

use crate::service_killed::Process;
use seckill_harness::folder::free_address;

/// The oldest schema that an upgrade may start from. The first tagged release raises it to its own, and brings a file of rows.
const RELEASED: i64 = 18;
const ROWS: &str = include_str!("../data/rows-0018.sql");
/// Tables whose rows change meanwhile: by these tests, or because a migration counts as a change of the policies.
const CHANGING: &str = "'_sqlx_migrations', 'outbox', 'policy_version'";

/// A purchase as a version with the schema of `RELEASED` commits it.
const PURCHASE: &str = "INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard)
                        SELECT 'order_placed', gen_random_uuid(), sale_id, $1, 1, epoch, 0 FROM sale_epochs FOR SHARE";
const WAITS_FOR_A_TABLE: &str = "SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                                 WHERE datname = current_database() AND locktype = 'relation' AND NOT granted
                                   AND mode = 'AccessExclusiveLock'";
const WAITS_FOR_ANOTHER: &str = "SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                                 WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations")
}

async fn migrations() -> Migrator {
    Migrator::new(folder()).await.unwrap()
}

/// These settings, with a database that is new and empty.
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

/// Runs a command, and fails with what it said if it fails.
async fn succeeds(mut command: Command) -> Result<(), String> {
    let done = command.output().await.unwrap();
    let said = || format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    done.status.success().then_some(()).ok_or_else(said)
}

/// Waits until a second try waits for a lock: the first one has given up.
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

/// The columns of each table whose rows have to stay as they are.
async fn columns(sql: &PgPool) -> Vec<(String, String)> {
    let columns = format!(
        "SELECT table_name::text, string_agg(quote_ident(column_name), ', ' ORDER BY ordinal_position)
         FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
         WHERE table_schema = 'public' AND table_type = 'BASE TABLE' AND table_name NOT IN ({CHANGING}) GROUP BY 1"
    );
    sqlx::query_as(AssertSqlSafe(columns)).fetch_all(sql).await.unwrap()
}

/// What stands in these columns of each table, as a number of rows and a hash.
async fn contents(sql: &PgPool, columns: &[(String, String)]) -> BTreeMap<String, (i64, String)> {
    let mut contents = BTreeMap::new();
    for (table, columns) in columns {
        let rows = format!(
            "SELECT count(*), coalesce(md5(string_agg(r::text, chr(10) ORDER BY r::text)), '')
             FROM (SELECT {columns} FROM {table}) r"
        );
        let found = sqlx::query_as(AssertSqlSafe(rows)).fetch_one(sql).await.unwrap();
        contents.insert(table.clone(), found);
    }
    contents
}

/// Each migration is applied once, and no process fails because another one was faster.
#[tokio::test(flavor = "multi_thread")]
async fn eight_at_once_migrate_a_new_database() {
    let environment = with_empty_database(quiet_environment().await).await;
    let outcomes = join_all((0..8).map(|_| succeeds(seckill(&environment, "migrate")))).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:#?}");
    let sql = PgPool::connect(&environment["DATABASE_URL"]).await.unwrap();
    let files: Vec<i64> = migrations().await.iter().map(|migration| migration.version).collect();
    assert_eq!(applied(&sql).await, files);
}

/// One that waits for another longer than any statement of the service may take is not ended by that time-out.
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

/// A database of the older schema is migrated while a transaction of the older version is open. Purchases wait a moment behind each
/// try and go on; every row of before is as it was; the older version can still write; and the new one sells what was left.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_schema_is_migrated_beside_the_older_version() {
    let system = System::prepare(&[]).await;
    let environment = with_empty_database(system.environment.clone()).await;
    let sql = PgPool::connect(&environment["DATABASE_URL"]).await.unwrap();
    migrations().await.run_to(RELEASED, &sql).await.unwrap();
    raw_sql(ROWS).execute(&sql).await.unwrap();
    let columns = columns(&sql).await;
    assert!(columns.len() > 25, "{columns:#?}");
    let before = contents(&sql, &columns).await;

    let mut older = sql.begin().await.unwrap();
    query(PURCHASE).bind("dan").execute(&mut *older).await.unwrap();
    let migrating = tokio::spawn(succeeds(seckill(&environment, "migrate")));
    second_try_waits(&sql, WAITS_FOR_A_TABLE).await;
    for user in ["eve", "fay", "gus"] {
        let bought = query(PURCHASE).bind(user).execute(&sql);
        // The older transaction is open, and a migration that waited for it would keep this one out for ever.
        timeout(PATIENCE, bought).await.expect("the purchase is not kept out").unwrap();
    }
    older.commit().await.unwrap();
    migrating.await.unwrap().unwrap();

    let files: Vec<i64> = migrations().await.iter().map(|migration| migration.version).collect();
    assert_eq!(applied(&sql).await, files);
    assert_eq!(contents(&sql, &columns).await, before);
    query(PURCHASE).bind("hal").execute(&sql).await.unwrap();

    let address = free_address();
    let own = [("DATABASE_URL", environment["DATABASE_URL"].as_str()), ("RUST_LOG", "error")];
    let service = Process::start_with(&system, address, &own, Stdio::inherit()).ready(address).await;
    let terms = "SELECT id, purchase_key, waiting_key FROM sales";
    let (id, key, waiting_key): (i64, String, String) = sqlx::query_as(terms).fetch_one(&sql).await.unwrap();
    let sale = Sale { id: SaleId::from_db(id), key, waiting_key };
    eventually(|| async {
        let answer = system.buy_at(address, &sale, "ivy").idempotent("k").send().await;
        if answer.status == 202 { Ok(()) } else { Err(answer.code()) }
    })
    .await;
    // ann, ben and cat had bought; dan to hal while it was migrated; ivy from the new version. An audit passes also before all of
    // them have their orders.
    eventually(|| async {
        let rows = "SELECT (SELECT count(*) FROM orders), stock FROM sales";
        let found: (i64, i64) = sqlx::query_as(rows).fetch_one(&sql).await.map_err(|error| error.to_string())?;
        (found == (9, 2)).then_some(()).ok_or_else(|| format!("{found:?} orders and units left"))
    })
    .await;
    eventually(|| succeeds(seckill(&environment, "audit"))).await;
    service.end();
    system.finish().await;
}

/// The older version lives on beside a migration, so a migration takes nothing away that this version reads or writes.
#[test]
fn migrations_only_add() {
    let mut checked = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name[..4].parse::<i64>().unwrap() <= RELEASED {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let code: Vec<&str> = text.lines().map(|line| line.split("--").next().unwrap_or_default()).collect();
        let code = code.join(" ").to_ascii_uppercase();
        for taken in ["DROP TABLE", "DROP COLUMN", "DROP VIEW", " RENAME ", "SET NOT NULL", "TRUNCATE", " TYPE "] {
            assert!(!code.contains(taken), "{name} has {taken}: docs/install.md says how to do that in two releases");
        }
        checked += 1;
    }
    assert!(checked > 0);
}

/// A rollout that forgot `migrate` stays unready; a database that is ahead is fine.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_is_ready_only_with_all_its_migrations() {
    let system = System::start().await;
    let ready = async |wanted: u16| {
        eventually(|| async {
            let (status, body) = system.get("/readyz", None).await;
            let is_right = status == wanted && body["schema"] == (wanted == 200);
            is_right.then_some(()).ok_or_else(|| format!("{status}: {body}"))
        })
        .await;
    };
    ready(200).await;
    for lost in ["(SELECT max(version) FROM _sqlx_migrations)", "44"] {
        let set_aside = format!("UPDATE _sqlx_migrations SET success = false WHERE version = {lost}");
        raw_sql(AssertSqlSafe(set_aside)).execute(&system.sql).await.unwrap();
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
