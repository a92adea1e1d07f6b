//! Settings of every session. Statements rely on none of the defaults of a server, database or role.

use sqlx::error::DatabaseError;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Executor, PgConnection, Row};

/// Settings that every supported version knows. sqlx sets `TimeZone`, `DateStyle` and the encoding.
const SETTINGS: [(&str, &str); 14] = [
    // Statements rely on this if they read a row again after waiting for it.
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_deferrable", "off"),
    ("bytea_output", "hex"),
    ("standard_conforming_strings", "on"),
    ("transform_null_equals", "off"),
    ("plan_cache_mode", "auto"),
    // Compiling takes longer than any of our statements: an audit would take a second instead of milliseconds.
    ("jit", "off"),
    // If another transaction holds a row's lock, work on other rows must continue.
    ("lock_timeout", "2000"),
    ("idle_in_transaction_session_timeout", "30000"),
    // The server ends the sessions of a vanished process, with their locks.
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "3"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "15000"),
    // Shows that the settings have reached the server.
    (MARK, "on"),
];
const MARK: &str = "seckill.session";
/// The schema of our tables, unless the address names one.
const SEARCH_PATH: &str = "search_path";

/// Sets what only newer versions know, and replaces worse values. With `synchronous_commit` off, a crash could undo a purchase after its
/// 202. Returns whether the settings above have arrived.
const BEGIN: &str = "SELECT coalesce(current_setting('seckill.session', true), '') = 'on',
    CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END,
    CASE WHEN current_setting('idle_session_timeout', true) <> '0' THEN set_config('idle_session_timeout', '0', false) END,
    CASE WHEN current_setting('transaction_timeout', true) <> '0' THEN set_config('transaction_timeout', '0', false) END";

#[derive(Debug, thiserror::Error)]
#[error("the settings that a connection asked for are not in force")]
pub(super) struct Unset;

pub(super) fn set(options: PgConnectOptions, statement_timeout_ms: u64) -> PgConnectOptions {
    let names_schema = options.get_options().is_some_and(|set| set.contains(SEARCH_PATH));
    let options = if names_schema { options } else { options.options([(SEARCH_PATH, "public")]) };
    options.options([("statement_timeout", statement_timeout_ms)]).options(SETTINGS)
}

/// Prepares a new connection. Fails if a pooler drops our settings, as PgBouncer can be configured to.
pub(super) async fn begin(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let row = connection.fetch_one(BEGIN).await?;
    if row.try_get(0)? { Ok(()) } else { Err(sqlx::Error::Configuration(Box::new(Unset))) }
}

/// Whether a pooler has refused the settings, as PgBouncer does.
pub(super) fn is_refused(error: &dyn DatabaseError) -> bool {
    error.code().as_deref() == Some("08P01") && error.message().contains("startup parameter")
}
