//! Migrates the schema while an older version of the service runs (docs/install.md).
//!
//! While a migration waits for a table, all later statements wait too. So it waits only briefly, gives up without a change, and is tried
//! again. Each migration is one transaction. If the process dies, the schema has a whole number of migrations, and the next run continues
//! there.

use std::time::Duration;

use sqlx::Connection;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::PgConnectOptions;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Database, LedgerError};

pub(super) static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations");

/// No time-out of statements, because an index of a large table may take long. The lock time-out is half of PostgreSQL's deadlock_timeout.
/// So in a deadlock the migration gives up, and never a purchase.
const SESSION: [(&str, &str); 2] = [("statement_timeout", "0"), ("lock_timeout", "500ms")];
/// The pause after a try. Statements that waited behind it run in this time.
const PAUSE: Duration = Duration::from_secs(2);
/// Tries for a lock, for about a minute.
const TRIES_MAX: u32 = 25;
const OTHER_MAX: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MigrationBlock {
    ByMigration,
    /// A transaction uses a table of this migration.
    ByTransaction(i64),
}

fn blocked(error: &LedgerError) -> Option<MigrationBlock> {
    let (cause, blocked) = match error {
        // This error is from sqlx's own statements. Only one of them waits: for sqlx's lock.
        LedgerError::Migration(MigrateError::Execute(cause)) => (cause, MigrationBlock::ByMigration),
        LedgerError::Migration(MigrateError::ExecuteMigration(cause, version)) => {
            (cause, MigrationBlock::ByTransaction(*version))
        }
        _ => return None,
    };
    // lock_not_available and deadlock_detected.
    let code = cause.as_database_error()?.code()?;
    ["55P03", "40P01"].contains(&code.as_ref()).then_some(blocked)
}

impl Database {
    /// Whether the schema has all migrations of this program. It may have more.
    pub async fn has_migrations(&self) -> Result<bool, LedgerError> {
        let ours: Vec<i64> = MIGRATIONS.iter().map(|migration| migration.version).collect();
        let applied = sqlx::query_scalar("SELECT count(*) FROM _sqlx_migrations WHERE success AND version = ANY($1)");
        let applied: i64 = applied.bind(&ours).fetch_one(&self.reserved).await?;
        Ok(usize::try_from(applied).is_ok_and(|applied| applied == ours.len()))
    }

    /// Migrates the schema. May run at any time and in several processes: one works, the others wait. Fails with `InUse` if a migration did
    /// not get its lock for a minute. A failed migration is rolled back. Earlier ones stay.
    pub async fn migrate(&self) -> Result<(), LedgerError> {
        self.found().await;
        let mut outages = self.outages();
        // A statement may take hours. Pings on a second connection show whether the server has vanished.
        let lost = async {
            tokio::select! {
                _ = outages.changed() => {}
                () = self.watch(CancellationToken::new()) => {}
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
                Some(MigrationBlock::ByMigration) if began.elapsed() < OTHER_MAX => {
                    tracing::info!("another process migrates the database; waiting for it");
                }
                Some(MigrationBlock::ByMigration) => return Err(error),
                Some(MigrationBlock::ByTransaction(version)) => {
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

    /// Applies missing migrations on a separate connection, because its session settings are not for the pool.
    async fn try_to_migrate(&self) -> Result<(), LedgerError> {
        let options = PgConnectOptions::clone(&self.pool.connect_options()).options(SESSION);
        let mut connection = Self::within(self.timeout, self.connect(&options)).await?;
        let done = MIGRATIONS.run(&mut connection).await;
        // The session holds the lock of a failed run. Closing the connection releases it.
        if let Err(error) = connection.close().await {
            tracing::debug!(%error, "the connection of the migrations was not closed in good order");
        }
        Ok(done?)
    }
}
