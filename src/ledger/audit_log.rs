//! The audit log: who has changed what. Each line is written in the transaction of its change.

use serde_json::Value;
use sqlx::PgConnection;

use super::{Ledger, LedgerError};

impl Ledger {
    /// Appends a line for a change that no transaction of the ledger makes.
    pub async fn record(&self, actor: &str, action: &str, subject: &str, details: Value) -> Result<(), LedgerError> {
        append(&mut *self.pool.acquire().await?, actor, action, subject, details).await
    }
}

/// Appends a line in the caller's transaction. `subject` is a kind and a name, such as `sale 7`.
pub(super) async fn append(
    tx: &mut PgConnection,
    actor: &str,
    action: &str,
    subject: &str,
    details: Value,
) -> Result<(), LedgerError> {
    sqlx::query!(
        "INSERT INTO audit_log (actor, action, subject, details) VALUES ($1, $2, $3, $4)",
        actor,
        action,
        subject,
        details
    )
    .execute(tx)
    .await?;
    Ok(())
}
