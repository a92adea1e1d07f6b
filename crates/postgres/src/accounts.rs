//! Accounts of people.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::sessions::read_role;
use super::{Accounts, LedgerError, audit_log};
use seckill_domain::account::{AccountName, AccountRole};

/// An account.
#[derive(Serialize, ToSchema)]
pub struct ListedAccount {
    pub name: String,
    pub role: String,
    /// Whether the account cannot sign in.
    pub disabled: bool,
    /// Open sessions.
    pub sessions: i64,
    pub created_by: String,
    #[serde(rename = "created_at_ms", with = "chrono::serde::ts_milliseconds")]
    #[schema(value_type = i64)]
    pub created_at: DateTime<Utc>,
}

pub struct SignInLimits {
    pub password_hash: String,
    pub address_is_known: bool,
}

/// A change of an account. `None` changes nothing.
#[derive(Debug, Default)]
pub struct AccountChange<'a> {
    pub role: Option<AccountRole>,
    pub disabled: Option<bool>,
    pub password_hash: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountOutcome {
    Changed,
    Unknown,
    /// Nothing was changed: no other admin could sign in.
    LastAdmin,
}

impl Accounts {
    /// Creates an account. Returns `false` if the name is taken.
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
        Ok(created.execute(&self.0.pool).await?.rows_affected() == 1)
    }

    /// All accounts, by name. Sessions without a request for `idle_ms` are not counted.
    pub async fn accounts(&self, idle_ms: i64) -> Result<Vec<ListedAccount>, LedgerError> {
        let accounts = sqlx::query_as!(
            ListedAccount,
            r#"SELECT name, role, disabled_at IS NOT NULL AS "disabled!", created_by, created_at,
                      (SELECT count(*) FROM sessions WHERE account = name AND expires_at > now()
                         AND seen_at > now() - $1::bigint * interval '1 ms') AS "sessions!"
               FROM accounts ORDER BY name"#,
            idle_ms
        );
        Ok(accounts.fetch_all(&self.0.pool).await?)
    }

    /// Whether the account exists. It may be disabled.
    pub async fn has_account(&self, name: &AccountName) -> Result<bool, LedgerError> {
        let exists =
            sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM accounts WHERE name = $1) AS "there!""#, name.as_str());
        Ok(exists.fetch_one(&self.0.pool).await?)
    }

    /// The data to check a sign-in against; `None` if the account does not exist or is disabled.
    pub async fn sign_in_terms(
        &self,
        name: &AccountName,
        address: &str,
        known_days: i32,
    ) -> Result<Option<SignInLimits>, LedgerError> {
        let terms = sqlx::query_as!(
            SignInLimits,
            r#"SELECT password_hash,
                      EXISTS (SELECT FROM sign_in_addresses WHERE account = name AND address = $2
                              AND seen_at > now() - make_interval(days => $3)) AS "address_is_known!"
               FROM accounts WHERE name = $1 AND disabled_at IS NULL"#,
            name.as_str(),
            address,
            known_days
        );
        Ok(terms.fetch_optional(&self.0.pool).await?)
    }

    /// Makes all parts of the change, or none. `keeps_admin`: not if no admin could sign in afterwards, so that nobody could make one.
    pub async fn change_account(
        &self,
        name: &AccountName,
        change: &AccountChange<'_>,
        keeps_admin: bool,
        actor: &str,
    ) -> Result<AccountOutcome, LedgerError> {
        let mut tx = self.0.begin().await?;
        // Locks all admins, in one order. If two admins disable each other at once, the second sees the first one's change.
        let locked = sqlx::query!(
            "SELECT name, role, disabled_at FROM accounts
             WHERE name = $1 OR (role = 'admin' AND disabled_at IS NULL) ORDER BY name FOR UPDATE",
            name.as_str()
        )
        .fetch_all(&mut *tx)
        .await?;
        let Some(before) = locked.iter().find(|row| row.name == name.as_str()) else {
            return Ok(AccountOutcome::Unknown);
        };
        let (role_before, was_disabled) = (read_role(&before.role)?, before.disabled_at.is_some());
        let (role, disabled) = (change.role.unwrap_or(role_before), change.disabled.unwrap_or(was_disabled));
        let was_admin = role_before == AccountRole::Admin && !was_disabled;
        let is_admin = role == AccountRole::Admin && !disabled;
        if keeps_admin && was_admin && !is_admin && locked.len() == 1 {
            return Ok(AccountOutcome::LastAdmin);
        }
        // A trigger ends the sessions if the account is disabled or gets another password.
        sqlx::query!(
            "UPDATE accounts SET role = $2, password_hash = coalesce($3, password_hash),
                                 disabled_at = CASE WHEN $4 THEN coalesce(disabled_at, now()) END
             WHERE name = $1",
            name.as_str(),
            role.into_str(),
            change.password_hash,
            disabled
        )
        .execute(&mut *tx)
        .await?;
        let subject = format!("account {name}");
        if role != role_before {
            let details = json!({ "before": role_before, "after": role });
            audit_log::append(&mut tx, actor, "role changed", &subject, details).await?;
        }
        if change.password_hash.is_some() {
            audit_log::append(&mut tx, actor, "password changed", &subject, json!({})).await?;
        }
        if disabled != was_disabled {
            let action = if disabled { "account disabled" } else { "account enabled" };
            audit_log::append(&mut tx, actor, action, &subject, json!({})).await?;
        }
        tx.commit().await?;
        Ok(AccountOutcome::Changed)
    }
}
