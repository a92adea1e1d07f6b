//! Accounts of people, their sessions, and the audit log's newest lines.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::audit_log::note;
use super::{Ledger, LedgerError};
use crate::domain::account::{Account, AccountName, AccountRole};
use crate::domain::policy::{Name, Role};

/// Sessions that one account may have; the next one ends the oldest.
const SESSIONS_MAX: i64 = 20;

/// A line of the audit log.
#[derive(Debug, Clone)]
pub struct LogLine {
    pub id: i64,
    pub at: DateTime<Utc>,
    pub actor: String,
    pub action: String,
    pub subject: String,
    pub details: Value,
}

impl Ledger {
    /// Creates an account. Returns `false` if there is one with this name already.
    pub async fn create_account(
        &self,
        name: &AccountName,
        role: AccountRole,
        password_hash: &str,
        actor: &str,
    ) -> Result<bool, LedgerError> {
        let created = sqlx::query!(
            "WITH made AS (
               INSERT INTO accounts (name, role, password_hash, created_by) VALUES ($1, $2, $3, $4)
               ON CONFLICT (name) DO NOTHING RETURNING name, role)
             INSERT INTO audit_log (actor, action, subject, details)
             SELECT $4, 'account created', 'account ' || name, jsonb_build_object('role', role) FROM made",
            name.as_str(),
            role.into_str(),
            password_hash,
            actor
        );
        Ok(created.execute(&self.pool).await?.rows_affected() == 1)
    }

    /// The hash of an account's password; `None` if there is no such account.
    pub async fn password_hash(&self, name: &AccountName) -> Result<Option<String>, LedgerError> {
        let hash = sqlx::query_scalar!("SELECT password_hash FROM accounts WHERE name = $1", name.as_str());
        Ok(hash.fetch_optional(&self.pool).await?)
    }

    /// Opens a session, and deletes expired ones. Returns the account's role and the session's end, in ms since the epoch.
    pub async fn open_session(
        &self,
        token_hash: &[u8; 32],
        account: &AccountName,
        session_ms: i64,
        address: &str,
    ) -> Result<(AccountRole, i64), LedgerError> {
        let mut tx = self.pool.begin().await?;
        // The lock orders the sign-ins of one account: two at once would not see each other's session.
        let role = sqlx::query_scalar!("SELECT role FROM accounts WHERE name = $1 FOR UPDATE", account.as_str());
        let role = role.fetch_one(&mut *tx).await?;
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
        note(&mut tx, account.as_str(), "signed in", &format!("account {account}"), json!({ "address": address }))
            .await?;
        tx.commit().await?;
        Ok((read_role(&role)?, expires_at.timestamp_millis()))
    }

    /// The account of a session, and the session's end, in ms since the epoch. Counts as a request: the session is not idle.
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
        let Some(row) = row.fetch_optional(&self.pool).await? else { return Ok(None) };
        let grants = row.apps.iter().zip(&row.roles).map(|(app, role)| {
            let app = Name::parse(app, "app").map_err(|_| LedgerError::Unreadable("policy_grants.app"))?;
            Ok((app, Role::parse(role).map_err(|_| LedgerError::Unreadable("policy_grants.role"))?))
        });
        let account = Account {
            name: AccountName::parse(&row.name, "name").map_err(|_| LedgerError::Unreadable("accounts.name"))?,
            role: read_role(&row.role)?,
            grants: grants.collect::<Result<_, LedgerError>>()?,
        };
        Ok(Some((account, row.expires_at.timestamp_millis())))
    }

    /// Ends a session.
    pub async fn close_session(&self, token_hash: &[u8; 32]) -> Result<(), LedgerError> {
        sqlx::query!(
            "WITH over AS (DELETE FROM sessions WHERE token_hash = $1 RETURNING account)
             INSERT INTO audit_log (actor, action, subject) SELECT account, 'signed out', 'account ' || account FROM over",
            token_hash.as_slice()
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// The newest lines of the audit log.
    pub async fn audit_log(&self, limit: i64) -> Result<Vec<LogLine>, LedgerError> {
        let lines = sqlx::query_as!(
            LogLine,
            "SELECT id, at, actor, action, subject, details FROM audit_log ORDER BY id DESC LIMIT $1",
            limit
        );
        Ok(lines.fetch_all(&self.pool).await?)
    }
}

fn read_role(text: &str) -> Result<AccountRole, LedgerError> {
    AccountRole::parse(text).map_err(|_| LedgerError::Unreadable("accounts.role"))
}
