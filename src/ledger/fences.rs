//! Fences: the newest token that anybody has written under, by the lock's name.

use sqlx::PgConnection;

use super::LedgerError;
use crate::domain::ids::FenceToken;

/// Takes the fence in the caller's transaction, before anything is written under the lock: from here to the end of the
/// transaction nobody else writes under this name, and an older token than the newest seen is refused. The same token may
/// come again: its holder writes more than once.
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
