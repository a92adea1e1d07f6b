//! Brings the schema up to date while an older version of the service lives (docs/install.md).
//!
//! A migration that waits for a table makes all later statements wait. So it waits only for a moment, gives up without a
//! change, and is tried again. Each migration is one transaction: if the process dies on any line, the schema is that of a whole
//! number of migrations, and the next run goes on from there.

use std::time::Duration;

use sqlx::Connection;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::PgConnectOptions;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Ledger, LedgerError};

/// The schema that this program is made for.
pub(super) static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// No time-out of statements, because an index of a large table takes as long as it takes. The limit on waiting for a lock is half of
/// PostgreSQL's deadlock_timeout: of two that wait for each other, the migration gives up, and never a purchase.
const SESSION: [(&str, &str); 2] = [("statement_timeout", "0"), ("lock_timeout", "500ms")];
/// The pause after a try, in which the statements that have waited behind it go on.
const PAUSE: Duration = Duration::from_secs(2);
/// Tries of migrations that cannot get a lock: for about a minute.
const TRIES_MAX: u32 = 25;
/// How long to wait for another process that migrates.
const OTHER_MAX: Duration = Duration::from_secs(3600);

/// Why a try has ended without a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blocked {
    /// Another process migrates.
    ByMigration,
    /// A transaction uses what this migration changes.
    ByTransaction(i64),
}

fn blocked(error: &LedgerError) -> Option<Blocked> {
    let (cause, blocked) = match error {
        // Only sqlx's own statements: of them, one waits, for its lock.
        LedgerError::Migration(MigrateError::Execute(cause)) => (cause, Blocked::ByMigration),
        LedgerError::Migration(MigrateError::ExecuteMigration(cause, version)) => {
            (cause, Blocked::ByTransaction(*version))
        }
        _ => return None,
    };
    // lock_not_available and deadlock_detected.
    let code = cause.as_database_error()?.code()?;
    ["55P03", "40P01"].contains(&code.as_ref()).then_some(blocked)
}

impl Ledger {
    /// Whether the schema has all migrations of this program. It may have newer ones.
    pub async fn has_migrations(&self) -> Result<bool, LedgerError> {
        let ours: Vec<i64> = MIGRATIONS.iter().map(|migration| migration.version).collect();
        let applied = sqlx::query_scalar("SELECT count(*) FROM _sqlx_migrations WHERE success AND version = ANY($1)");
        let applied: i64 = applied.bind(&ours).fetch_one(&self.reserved).await?;
        Ok(usize::try_from(applied).is_ok_and(|applied| applied == ours.len()))
    }

    /// Brings the schema up to date. May run at any time, and in several processes at once: one works, and the others wait for it.
    ///
    /// # Errors
    /// `InUse` when a transaction has kept a migration from its lock for a minute; `Unreachable` when the server does not answer;
    /// else the migration's own. What a failed migration did is undone, and those before it stay.
    pub async fn migrate(&self) -> Result<(), LedgerError> {
        self.found().await;
        let mut outages = self.outages();
        // A statement may take hours, so only pings beside it tell a server that works from one that has vanished.
        let lost = async {
            tokio::select! {
                _ = outages.changed() => {}
                () = self.clone().watch(CancellationToken::new()) => {}
            }
        };
        tokio::select! {
            done = self.migrate_patiently() => done,
            () = lost => Err(LedgerError::Unreachable(sqlx::Error::PoolTimedOut)),
        }
    }

    async fn migrate_patiently(&self) -> Result<(), LedgerError> {
        let (began, mut tries) = (Instant::now(), 0);
        loop {
            let Err(error) = self.try_to_migrate().await else { return Ok(()) };
            match blocked(&error) {
                None => return Err(error),
                Some(Blocked::ByMigration) if began.elapsed() < OTHER_MAX => {
                    tracing::info!("another process migrates the database; waiting for it");
                }
                Some(Blocked::ByMigration) => return Err(error),
                Some(Blocked::ByTransaction(version)) => {
                    tries += 1;
                    if tries >= TRIES_MAX {
                        return Err(LedgerError::InUse(version));
                    }
                    tracing::warn!(version, tries, "a transaction uses what the migration changes; trying again");
                }
            }
            sleep(PAUSE).await;
        }
    }

    /// Applies what is missing, on a connection of its own, because the settings of its session are not for the pool.
    async fn try_to_migrate(&self) -> Result<(), LedgerError> {
        let options = PgConnectOptions::clone(&self.pool.connect_options()).options(SESSION);
        let mut connection = Self::within(self.timeout, self.connect(&options)).await?;
        let done = MIGRATIONS.run(&mut connection).await;
        // The lock of a failed run is the session's, and ends with it.
        if let Err(error) = connection.close().await {
            tracing::debug!(%error, "the connection of the migrations was not closed in good order");
        }
        Ok(done?)
    }
}
