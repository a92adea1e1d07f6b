//! PostgreSQL's facts as our role sees them on our connections, for `seckill doctor`. Changes nothing.
//!
//! The questions are simple queries, without prepared statements. So they also work through a pooler that breaks prepared statements, and
//! the doctor can report that pooler. The compiler does not check them: tests/api/operations/doctor.rs asks all of them.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions, PgSslMode};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, raw_sql};
use uuid::Uuid;

use super::migrate::MIGRATIONS;
use super::{Database, LedgerError};
use seckill_config::tls::{Protection, Route};
use seckill_config::{self as config, servers};
use seckill_domain::clock_reading::ClockReading;

/// The settings in force on our connection, and the role's rights.
#[derive(Debug, Clone, Deserialize)]
pub struct DatabaseFacts {
    pub version: String,
    pub fsync: String,
    pub full_page_writes: String,
    pub synchronous_commit: String,
    pub synchronous_standby_names: String,
    pub in_recovery: bool,
    pub read_only: bool,
    pub statement_timeout_ms: u64,
    pub max_connections: i64,
    /// The part of `max_connections` reserved for superusers and similar roles.
    pub kept_connections: i64,
    /// Connection limits of the role and of the database; -1: none.
    pub role_limit: i64,
    pub database_limit: i64,
    /// Open sessions of all databases.
    pub sessions: i64,
    pub role: String,
    /// The role's attributes that a service does not need.
    pub powers: Vec<String>,
}

/// A server that replicates from this one. Without pg_read_all_stats, only its existence is visible.
#[derive(Debug, Clone, Deserialize)]
pub struct Standby {
    pub name: Option<String>,
    /// `streaming` and so on; `backup`: a backup is running.
    pub state: Option<String>,
    /// `sync`, `quorum`, `potential` or `async`.
    pub sync_state: Option<String>,
}

/// The database's migrations, compared with this program's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SchemaState {
    pub newest: i64,
    pub missing: Vec<i64>,
    pub unfinished: Vec<i64>,
    /// Applied, but with another text.
    pub changed: Vec<i64>,
    pub unknown: Vec<i64>,
}

/// Unsold units of all sales that have not ended.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct PlannedUnits {
    pub sales: u64,
    pub units: u64,
    /// Sales with unlimited stock, which have no number of units.
    pub unlimited: u64,
}

#[derive(Deserialize)]
struct AppliedMigration {
    version: i64,
    success: bool,
    checksum: String,
}

const FACTS: &str = "SELECT row_to_json(facts)::text FROM (
    SELECT current_setting('server_version') AS version,
           current_setting('fsync') AS fsync,
           current_setting('full_page_writes') AS full_page_writes,
           current_setting('synchronous_commit') AS synchronous_commit,
           current_setting('synchronous_standby_names') AS synchronous_standby_names,
           pg_is_in_recovery() AS in_recovery,
           current_setting('transaction_read_only')::boolean AS read_only,
           (SELECT setting::bigint FROM pg_settings WHERE name = 'statement_timeout') AS statement_timeout_ms,
           current_setting('max_connections')::int AS max_connections,
           current_setting('superuser_reserved_connections')::int
             + coalesce(current_setting('reserved_connections', true)::int, 0) AS kept_connections,
           rolconnlimit AS role_limit,
           (SELECT datconnlimit FROM pg_database WHERE datname = current_database()) AS database_limit,
           (SELECT sum(numbackends)::bigint FROM pg_stat_database) AS sessions,
           rolname AS role,
           array_remove(ARRAY[
             CASE WHEN rolsuper THEN 'SUPERUSER' END, CASE WHEN rolcreaterole THEN 'CREATEROLE' END,
             CASE WHEN rolreplication THEN 'REPLICATION' END, CASE WHEN rolbypassrls THEN 'BYPASSRLS' END
           ], NULL) AS powers
      FROM pg_roles WHERE rolname = current_user) facts";

const STANDBYS: &str = "SELECT coalesce(json_agg(standby), '[]')::text FROM (
    SELECT application_name AS name, state, sync_state FROM pg_stat_replication ORDER BY 1) standby";

const APPLIED: &str = "SELECT coalesce(json_agg(applied), '[]')::text FROM (
    SELECT version, success, encode(checksum, 'hex') AS checksum FROM _sqlx_migrations ORDER BY version) applied";

const PLANNED: &str = "SELECT row_to_json(planned)::text FROM (
    SELECT count(*) AS sales,
           count(*) FILTER (WHERE total_stock = -1) AS unlimited,
           coalesce(sum(stock) FILTER (WHERE stock > 0), 0)::bigint + coalesce(sum(coming.units), 0)::bigint AS units
      FROM sales
      LEFT JOIN LATERAL (SELECT sum(units)::bigint AS units FROM sale_waves
                          WHERE sale_id = sales.id AND released_at IS NULL) coming ON true
     WHERE ends_at > now() AND status <> 'closed') planned";

const UNDEFINED_TABLE: &str = "42P01";

impl Database {
    pub async fn facts(&self) -> Result<DatabaseFacts, LedgerError> {
        self.ask(FACTS).await
    }

    pub async fn standbys(&self) -> Result<Vec<Standby>, LedgerError> {
        self.ask(STANDBYS).await
    }

    pub async fn planned_units(&self) -> Result<PlannedUnits, LedgerError> {
        self.ask(PLANNED).await
    }

    /// PostgreSQL's clock. The connection is opened first, so that its delay does not count.
    pub async fn clock(&self) -> Result<ClockReading, LedgerError> {
        let mut connection = self.own_connection().await?;
        let asked_at = Instant::now();
        let ms = read("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint::text", &mut connection).await?;
        let answered_at = Instant::now();
        connection.close().await?;
        Ok(ClockReading { ms, asked_at, answered_at })
    }

    pub async fn schema_state(&self) -> Result<SchemaState, LedgerError> {
        let mut connection = self.own_connection().await?;
        let applied: Vec<AppliedMigration> = match text_of(APPLIED, &mut connection).await {
            Ok(json) => parse(&json)?,
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(UNDEFINED_TABLE) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        connection.close().await?;
        let mut state = SchemaState::default();
        for migration in MIGRATIONS.iter() {
            state.newest = state.newest.max(migration.version);
            let checksum: String = migration.checksum.iter().map(|byte| format!("{byte:02x}")).collect();
            match applied.iter().find(|row| row.version == migration.version) {
                None => state.missing.push(migration.version),
                Some(row) if !row.success => state.unfinished.push(row.version),
                Some(row) if row.checksum != checksum => state.changed.push(row.version),
                Some(_) => {}
            }
        }
        let known = |version: i64| MIGRATIONS.iter().any(|migration| migration.version == version);
        state.unknown.extend(applied.iter().map(|row| row.version).filter(|version| !known(*version)));
        Ok(state)
    }

    /// Whether each of our connections has its own PostgreSQL session. A pooler in transaction mode breaks this: two connections get the
    /// same session, or one loses its session to another's transaction.
    pub async fn has_own_sessions(&self) -> Result<bool, LedgerError> {
        let (mut one, mut other) = (self.own_connection().await?, self.own_connection().await?);
        let before = (session(&mut one).await?, session(&mut other).await?);
        let own = before.0 != before.1 && {
            raw_sql("BEGIN READ ONLY").execute(&mut other).await?;
            let within = (session(&mut other).await?, session(&mut one).await?);
            raw_sql("ROLLBACK").execute(&mut other).await?;
            within == (before.1, before.0)
        };
        one.close().await?;
        other.close().await?;
        Ok(own)
    }

    /// Whether a notice from one connection reaches a listener on another within `wait`. The channel is new, so it has no other listener.
    pub async fn hears_notices(&self, wait: Duration) -> Result<bool, LedgerError> {
        let channel = format!("seckill_doctor_{}", Uuid::new_v4().simple());
        let mut connection = self.own_connection().await?;
        // This pool does not check its connections, so it also works through a pooler.
        let options = PgConnectOptions::clone(&self.pool.connect_options());
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(&channel).await?;
        match raw_sql(AssertSqlSafe(format!("SELECT pg_notify('{channel}', '')"))).execute(&mut connection).await {
            // A pooler passes the notification to the session that sent it.
            Err(sqlx::Error::Protocol(_)) => return Ok(false),
            sent => sent?,
        };
        connection.close().await?;
        match tokio::time::timeout(wait, listener.recv()).await {
            Ok(heard) => Ok(heard?.channel() == channel),
            Err(_) => Ok(false),
        }
    }

    /// A connection to the server of the pools. If the server is away, this fails at once, where a pool would try again.
    async fn own_connection(&self) -> Result<PgConnection, LedgerError> {
        self.found().await;
        Ok(PgConnection::connect_with(&self.pool.connect_options()).await?)
    }

    async fn ask<T: DeserializeOwned>(&self, sql: &'static str) -> Result<T, LedgerError> {
        let mut connection = self.own_connection().await?;
        let answer = read(sql, &mut connection).await?;
        connection.close().await?;
        Ok(answer)
    }

    /// The maximum of connections of one process, with its listener's.
    pub fn connections_max(&self) -> u32 {
        self.pool.options().get_max_connections() + self.reserved.options().get_max_connections() + 1
    }
}

pub fn routes(database: &config::Database) -> Result<Vec<Route>, LedgerError> {
    let route = |address: String| {
        let options: PgConnectOptions = address.parse().map_err(LedgerError::Failed)?;
        let host = options.get_host();
        let socket = options.get_socket().is_some() || host.starts_with('/');
        let protection = match options.get_ssl_mode() {
            // `prefer` continues without TLS if the server, or an impostor, offers none.
            PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer => Protection::Nothing,
            PgSslMode::Require => Protection::AnyCertificate,
            PgSslMode::VerifyCa | PgSslMode::VerifyFull => Protection::CheckedCertificate,
        };
        Ok(Route { host: (!socket).then(|| host.to_owned()), protection })
    };
    servers::each_postgres(&database.url).into_iter().map(route).collect()
}

/// The first column of the first row, as text.
async fn text_of(sql: &'static str, connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    raw_sql(sql).fetch_one(connection).await?.try_get(0)
}

async fn read<T: DeserializeOwned>(sql: &'static str, connection: &mut PgConnection) -> Result<T, LedgerError> {
    parse(&text_of(sql, connection).await?)
}

fn parse<T: DeserializeOwned>(json: &str) -> Result<T, LedgerError> {
    serde_json::from_str(json).map_err(|_| LedgerError::Unreadable("what PostgreSQL says of itself"))
}

async fn session(connection: &mut PgConnection) -> Result<i64, LedgerError> {
    read("SELECT pg_backend_pid()::text", connection).await
}
