//! Accounts of people.

use chrono::{DateTime, Utc};
use serde_json::json;

use super::audit_log;
use super::{Ledger, LedgerError};
use crate::domain::account::{AccountName, AccountRole};

/// An account as the command line lists it.
pub struct ListedAccount {
    pub name: String,
    pub role: String,
    pub disabled_at: Option<DateTime<Utc>>,
    pub created_by: String,
    pub created_at: DateTime<Utc>,
    /// Open sessions.
    pub sessions: i64,
}

/// What an attempt to sign in is checked against.
pub struct SignInTerms {
    pub password_hash: String,
    /// The account has signed in from this address not long ago.
    pub address_is_known: bool,
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

    /// All accounts, by name.
    pub async fn accounts(&self) -> Result<Vec<ListedAccount>, LedgerError> {
        let accounts = sqlx::query_as!(
            ListedAccount,
            r#"SELECT name, role, disabled_at, created_by, created_at,
                      (SELECT count(*) FROM sessions WHERE account = name AND expires_at > now()) AS "sessions!"
               FROM accounts ORDER BY name"#
        );
        Ok(accounts.fetch_all(&self.pool).await?)
    }

    /// Whether there is such an account, disabled or not.
    pub async fn has_account(&self, name: &AccountName) -> Result<bool, LedgerError> {
        let exists =
            sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM accounts WHERE name = $1) AS "there!""#, name.as_str());
        Ok(exists.fetch_one(&self.pool).await?)
    }

    /// What an attempt to sign in is checked against; `None` if there is no such account, or it is disabled.
    pub async fn sign_in_terms(
        &self,
        name: &AccountName,
        address: &str,
        known_days: i32,
    ) -> Result<Option<SignInTerms>, LedgerError> {
        let terms = sqlx::query_as!(
            SignInTerms,
            r#"SELECT password_hash,
                      EXISTS (SELECT FROM sign_in_addresses WHERE account = name AND address = $2
                              AND seen_at > now() - make_interval(days => $3)) AS "address_is_known!"
               FROM accounts WHERE name = $1 AND disabled_at IS NULL"#,
            name.as_str(),
            address,
            known_days
        );
        Ok(terms.fetch_optional(&self.pool).await?)
    }

    /// Changes an account's password, which ends its sessions. Returns `false` if there is no such account.
    pub async fn set_password(&self, name: &AccountName, hash: &str, actor: &str) -> Result<bool, LedgerError> {
        let mut tx = self.pool.begin().await?;
        let changed = sqlx::query!("UPDATE accounts SET password_hash = $2 WHERE name = $1", name.as_str(), hash);
        if changed.execute(&mut *tx).await?.rows_affected() == 0 {
            return Ok(false);
        }
        audit_log::append(&mut tx, actor, "password changed", &format!("account {name}"), json!({})).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Disables an account, which ends its sessions, or enables it again. Returns `false` if there is no such account.
    pub async fn set_disabled(&self, name: &AccountName, disabled: bool, actor: &str) -> Result<bool, LedgerError> {
        let mut tx = self.pool.begin().await?;
        let changed = sqlx::query!(
            "UPDATE accounts SET disabled_at = CASE WHEN $2 THEN coalesce(disabled_at, now()) END WHERE name = $1",
            name.as_str(),
            disabled
        );
        if changed.execute(&mut *tx).await?.rows_affected() == 0 {
            return Ok(false);
        }
        let action = if disabled { "account disabled" } else { "account enabled" };
        audit_log::append(&mut tx, actor, action, &format!("account {name}"), json!({})).await?;
        tx.commit().await?;
        Ok(true)
    }
}
