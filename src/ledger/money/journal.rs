//! The journal: each movement of money is one line with a debit and a credit account (migrations/0005_money.sql names them).

use sqlx::PgConnection;
use uuid::Uuid;

use crate::ledger::LedgerError;

/// The line for a payment or a refund.
#[derive(Debug, Clone, Copy)]
pub(in crate::ledger) struct Movement<'a> {
    pub order: Uuid,
    pub amount_cents: i64,
    pub currency: &'a str,
}

/// Writes a line. A second line of this kind for the same payment or refund fails the transaction.
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
