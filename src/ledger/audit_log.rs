//! Who has changed what: a line in the audit log, in the transaction of the change.

use serde_json::Value;
use sqlx::PgConnection;

use super::LedgerError;

/// Notes it. `subject` is a kind and a name, such as `sale 7`.
pub(super) async fn note(
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
