//! Sessions of accounts. Every request reads its session here, so that an ended session ends everywhere at once.

use serde_json::json;

use super::audit_log::{self, NewLine};
use super::{Accounts, LedgerError};
use seckill_domain::account::{Account, AccountName, AccountRole};
use seckill_domain::policy::{Name, Role};

/// Session limit per account. The next one ends the oldest.
const SESSIONS_MAX: i64 = 20;
/// How many addresses of an account are remembered, newest sign-ins first.
const ADDRESSES_MAX: i64 = 20;

impl Accounts {
    /// Opens a session, and deletes expired ones. `password_hash`: the one that the password was checked against. Returns the account's role
    /// and the session's end, in ms since the epoch. Returns `None` if, since the check, the password was changed or the account disabled.
    pub async fn open_session(
        &self,
        token_hash: &[u8; 32],
        account: &AccountName,
        password_hash: &str,
        session_ms: i64,
        address: &str,
    ) -> Result<Option<(AccountRole, i64)>, LedgerError> {
        let mut tx = self.0.begin().await?;
        // Orders the sign-ins of one account, so that two at once see each other's session. Waits for a change of the account.
        let role = sqlx::query_scalar!(
            "SELECT role FROM accounts WHERE name = $1 AND password_hash = $2 AND disabled_at IS NULL FOR UPDATE",
            account.as_str(),
            password_hash
        );
        let Some(role) = role.fetch_optional(&mut *tx).await? else { return Ok(None) };
        sqlx::query!(
            "DELETE FROM sessions
             WHERE expires_at <= now()
                OR token_hash IN (SELECT token_hash FROM sessions WHERE account = $1
                                  ORDER BY created_at DESC OFFSET $2)",
            account.as_str(),
            SESSIONS_MAX - 1
        )
        .execute(&mut *tx)
        .await?;
        let expires_at = sqlx::query_scalar!(
            "INSERT INTO sessions (token_hash, account, expires_at)
             VALUES ($1, $2, now() + $3::bigint * interval '1 ms') RETURNING expires_at",
            token_hash.as_slice(),
            account.as_str(),
            session_ms
        )
        .fetch_one(&mut *tx)
        .await?;
        sqlx::query!(
            "WITH oldest AS (
               DELETE FROM sign_in_addresses WHERE account = $1 AND address IN (
                 SELECT address FROM sign_in_addresses WHERE account = $1 AND address <> $2
                 ORDER BY seen_at DESC OFFSET $3))
             INSERT INTO sign_in_addresses (account, address) VALUES ($1, $2)
             ON CONFLICT (account, address) DO UPDATE SET seen_at = now()",
            account.as_str(),
            address,
            ADDRESSES_MAX - 1
        )
        .execute(&mut *tx)
        .await?;
        let details = json!({ "address": address });
        append_of(&mut tx, account.as_str(), "signed in", details).await?;
        tx.commit().await?;
        Ok(Some((read_role(&role)?, expires_at.timestamp_millis())))
    }

    /// A session's account, and the session's end in ms since the epoch. Counts as a request, so the session is not idle.
    pub async fn session(&self, token_hash: &[u8; 32], idle_ms: i64) -> Result<Option<(Account, i64)>, LedgerError> {
        let row = sqlx::query!(
            r#"WITH seen AS (
                 UPDATE sessions SET seen_at = now()
                 WHERE token_hash = $1 AND expires_at > now() AND seen_at > now() - $2::bigint * interval '1 ms'
                 RETURNING account, expires_at)
               SELECT name, role, expires_at AS "expires_at!",
                      ARRAY(SELECT app FROM policy_grants WHERE account = name ORDER BY app) AS "apps!",
                      ARRAY(SELECT policy_grants.role FROM policy_grants WHERE account = name ORDER BY app) AS "roles!"
               FROM seen JOIN accounts ON name = account"#,
            token_hash.as_slice(),
            idle_ms
        );
        let Some(row) = row.fetch_optional(&self.0.pool).await? else { return Ok(None) };
        let grants = row.apps.iter().zip(&row.roles).map(|(app, role)| {
            let app = Name::parse(app, "app").map_err(|_| LedgerError::Unreadable("policy_grants.app"))?;
            Ok((app, role.parse::<Role>().map_err(|_| LedgerError::Unreadable("policy_grants.role"))?))
        });
        let account = Account {
            name: AccountName::parse(&row.name, "name").map_err(|_| LedgerError::Unreadable("accounts.name"))?,
            role: read_role(&row.role)?,
            grants: grants.collect::<Result<_, LedgerError>>()?,
        };
        Ok(Some((account, row.expires_at.timestamp_millis())))
    }

    pub async fn close_session(&self, token_hash: &[u8; 32]) -> Result<(), LedgerError> {
        let mut tx = self.0.begin().await?;
        let ended =
            sqlx::query_scalar!("DELETE FROM sessions WHERE token_hash = $1 RETURNING account", token_hash.as_slice());
        if let Some(account) = ended.fetch_optional(&mut *tx).await? {
            append_of(&mut tx, &account, "signed out", json!({})).await?;
        }
        Ok(tx.commit().await?)
    }

    /// Ends all sessions of an account. Returns how many; `None` if there is no such account.
    pub async fn close_sessions(&self, account: &AccountName, actor: &str) -> Result<Option<u64>, LedgerError> {
        let mut tx = self.0.begin().await?;
        // Waits for a session that is being opened, and ends it too.
        let locked = sqlx::query_scalar!("SELECT name FROM accounts WHERE name = $1 FOR UPDATE", account.as_str());
        if locked.fetch_optional(&mut *tx).await?.is_none() {
            return Ok(None);
        }
        let ended = sqlx::query!("DELETE FROM sessions WHERE account = $1", account.as_str());
        let ended = ended.execute(&mut *tx).await?.rows_affected();
        let (subject, details) = (format!("account {account}"), json!({ "sessions": ended }));
        audit_log::append(&mut tx, actor, "signed out everywhere", &subject, details).await?;
        tx.commit().await?;
        Ok(Some(ended))
    }
}

/// A line about an account's own action. Limited, because an account could sign in and out without end.
async fn append_of(
    tx: &mut sqlx::PgConnection,
    account: &str,
    action: &str,
    details: serde_json::Value,
) -> Result<(), LedgerError> {
    let line = NewLine { actor: account, action, subject: &format!("account {account}"), details };
    audit_log::append_bounded(tx, &format!("sign-ins of {account}"), line).await
}

pub(super) fn read_role(text: &str) -> Result<AccountRole, LedgerError> {
    AccountRole::parse(text).map_err(|_| LedgerError::Unreadable("accounts.role"))
}
