//! Fences: the newest fencing token of each lock, under which something was written.

use sqlx::PgConnection;

use super::LedgerError;
use seckill_domain::ids::FenceToken;

/// Checks a token before any write under the lock. The lock's other transactions wait here. Fails with `Overtaken` after a newer token.
pub async fn check(connection: &mut PgConnection, name: &str, token: FenceToken) -> Result<(), LedgerError> {
    let newest = sqlx::query_scalar!(
        "INSERT INTO fences (name, token) VALUES ($1, $2)
         ON CONFLICT (name) DO UPDATE SET token = EXCLUDED.token WHERE fences.token <= EXCLUDED.token
         RETURNING token",
        name,
        token.0
    )
    .fetch_optional(connection)
    .await?;
    newest.map(drop).ok_or(LedgerError::Overtaken(token))
}
