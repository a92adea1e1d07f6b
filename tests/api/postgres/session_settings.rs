//! No session depends on the defaults of a server, a database or a role.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use seckill::app::stores;
use seckill_config::Config;
use seckill_harness::folder::{Folder, free_address};
use seckill_harness::own_postgres::{OwnPostgres, as_postgres, give_to_postgres};
use seckill_harness::own_rabbitmq::listens;
use seckill_harness::running::Running;
use seckill_harness::{Environment, System, quiet_environment, terms};
use seckill_postgres::LedgerError;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection, raw_sql};

/// Possible defaults of a database. Each of these, without our settings, changes the effect of one of our statements, or prevents it.
const HOSTILE: [(&str, &str); 14] = [
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_deferrable", "on"),
    ("statement_timeout", "1"),
    ("lock_timeout", "1"),
    ("idle_in_transaction_session_timeout", "1"),
    ("idle_session_timeout", "50"),
    ("bytea_output", "escape"),
    ("TimeZone", "Asia/Kathmandu"),
    ("DateStyle", "German"),
    ("IntervalStyle", "iso_8601"),
    ("transform_null_equals", "on"),
    ("standard_conforming_strings", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("synchronous_commit", "off"),
];

async fn make_hostile(url: &str) {
    let mut sql = PgConnection::connect(url).await.unwrap();
    let name = url.rsplit('/').next().unwrap();
    for (setting, value) in HOSTILE {
        let alter = format!("ALTER DATABASE {name} SET {setting} = '{value}'");
        raw_sql(AssertSqlSafe(alter)).execute(&mut sql).await.unwrap();
    }
}

/// Two hundred winners with their orders, cancelled and paid, as with PostgreSQL's own defaults.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_defaults_of_the_database_break_no_promise() {
    let mut system = System::prepare(&[("SECKILL_PURCHASE__COMMITTERS", "8")]).await;
    // The test's own queries use connections that were opened before.
    let watching = join_all((0..4).map(|_| system.sql.acquire())).await;
    make_hostile(&system.config.database.url).await;
    drop(watching);
    system.serve(true).await;
    let sales = join_all((0..4).map(|_| system.create_sale(terms(50)))).await;
    let users: Vec<String> = (0..50).map(|n| format!("u{n}")).collect();
    let clicks = sales.iter().flat_map(|sale| users.iter().map(|user| system.buy(sale, user).send()));
    let answers = join_all(clicks).await;
    assert!(answers.iter().all(|answer| answer.status == 202), "{:?}", answers.iter().find(|one| one.status != 202));
    for sale in &sales {
        system.settled(sale).await;
        assert_eq!(system.orders(sale).await, 50);
    }
    let failed = "SELECT count(*) FROM outbox WHERE sale_id = $1 AND (attempts > 0 OR status = 'parked')";
    assert_eq!(system.count(failed, &sales[0]).await, 0);
    let cancel = |answer: &seckill_harness::Answer| format!("/api/v1/orders/{}/cancel", answer.order_id());
    for (answer, user) in answers.iter().zip(&users).take(5) {
        assert_eq!(system.post(&cancel(answer), user).await.0, 200);
    }
    system.left(&sales[0], 5).await;
    system.finish().await;
}

/// Tables of the same names are not ours if they are in a schema that the database puts first.
#[tokio::test(flavor = "multi_thread")]
async fn tables_of_another_schema_are_left_alone() {
    let system = System::prepare(&[]).await;
    let (url, name) = (&system.config.database.url, system.config.database.url.rsplit('/').next().unwrap().to_owned());
    let mut sql = PgConnection::connect(url).await.unwrap();
    let decoy = format!(
        "CREATE SCHEMA other; CREATE TABLE other.audit_log (LIKE public.audit_log INCLUDING ALL);
         ALTER DATABASE {name} SET search_path = other, public"
    );
    raw_sql(AssertSqlSafe(decoy)).execute(&mut sql).await.unwrap();
    let here = |url: &str| {
        let environment = system.environment.clone().into_iter().chain([("DATABASE_URL".to_owned(), url.to_owned())]);
        stores(&Config::read(&environment.collect::<Environment>()).unwrap()).unwrap().ledger
    };
    here(url).accounts.record("test", "write", "ours", json!({})).await.unwrap();
    // An address that names a schema is obeyed.
    let named = format!("{url}?options=-c%20search_path%3Dother");
    here(&named).accounts.record("test", "write", "theirs", json!({})).await.unwrap();
    for (table, subject) in [("public", "ours"), ("other", "theirs")] {
        let found = format!("SELECT string_agg(subject, ',') FROM {table}.audit_log WHERE actor = 'test'");
        let found: Option<String> = sqlx::query_scalar(AssertSqlSafe(found)).fetch_one(&mut sql).await.unwrap();
        assert_eq!(found.as_deref(), Some(subject), "{table}");
    }
    system.finish().await;
}

/// PgBouncer, which shares the sessions of a server among transactions.
pub struct PgBouncer {
    _process: Running,
    pub port: u16,
    _folder: Folder,
}

impl PgBouncer {
    pub async fn before(server: &OwnPostgres, ignores_settings: bool) -> Self {
        let (folder, port) = (Folder::new("pgbouncer"), free_address().port());
        let ignored = if ignores_settings { "extra_float_digits,options" } else { "extra_float_digits" };
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = transaction\ndefault_pool_size = 1\nignore_startup_parameters = {ignored}\n",
            server.port()
        );
        // With this kind of authentication, the server's address names the user.
        let settings = settings.replace("port=", "user=seckill port=");
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).unwrap();
        give_to_postgres(folder.path());
        let mut command = as_postgres(Path::new("/usr/sbin/pgbouncer"));
        command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let own = Self { _process: Running::start(&mut command), port, _folder: folder };
        listens(port).await;
        own
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_shares_sessions_is_refused_by_its_name() {
    let server = OwnPostgres::start(&[]).await;
    for ignores_settings in [false, true] {
        let pooler = PgBouncer::before(&server, ignores_settings).await;
        let mut environment = quiet_environment().await;
        environment.insert("DATABASE_URL".to_owned(), format!("postgres://seckill@127.0.0.1:{}/postgres", pooler.port));
        let ledger = stores(&Config::read(&environment).unwrap()).unwrap().ledger;
        let refused = tokio::time::timeout(Duration::from_secs(60), ledger.check_session()).await.unwrap();
        assert!(matches!(refused, Err(LedgerError::Pooled(_))), "{ignores_settings}: {refused:?}");
        let mut serve = Command::new(env!("CARGO_BIN_EXE_seckill"));
        let said = serve.arg("serve").env_clear().envs(&environment).stdin(Stdio::null()).output().unwrap();
        let said = (said.status.success(), String::from_utf8_lossy(&said.stderr).into_owned());
        assert!(!said.0 && said.1.contains("pooler") && said.1.contains("database.url"), "{said:?}");
    }
}
