//! The journal: every movement of money, a line with both of its sides (migrations/0005_money.sql names them).

use sqlx::PgConnection;
use uuid::Uuid;

use crate::ledger::LedgerError;

/// What is written down of a payment or a refund.
#[derive(Debug, Clone, Copy)]
pub(in crate::ledger) struct Movement<'a> {
    pub order: Uuid,
    pub amount_cents: i64,
    pub currency: &'a str,
}

/// Writes a line of the journal. A second one of its kind for the same payment or refund breaks the transaction.
pub(in crate::ledger) async fn write(
    tx: &mut PgConnection,
    entry: &str,
    subject: Uuid,
    of: Movement<'_>,
    debit: &str,
    credit: &str,
) -> Result<(), LedgerError> {
    sqlx::query!(
        "INSERT INTO journal (entry, subject, order_id, debit, credit, amount_cents, currency)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
        entry,
        subject,
        of.order,
        debit,
        credit,
        of.amount_cents,
        of.currency
    )
    .execute(tx)
    .await?;
    Ok(())
}
