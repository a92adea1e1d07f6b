//! Applications that may ask for permits, and the grants of accounts on their policies.

use chrono::{DateTime, Utc};
use serde_json::json;
use sqlx::types::Json;

use crate::domain::account::{AccountName, Granted};
use crate::domain::policy::{Name, Role};
use crate::ledger::audit_log;
use crate::ledger::{Ledger, LedgerError};

/// An application, and the grants on its policies.
pub struct App {
    pub name: Name,
    pub created_by: String,
    pub created_at: DateTime<Utc>,
    pub grants: Vec<Granted>,
}

impl Ledger {
    /// Makes an application. Returns `false` when it exists already.
    pub async fn create_app(&self, app: &Name, token_hash: &[u8; 32], actor: &str) -> Result<bool, LedgerError> {
        let mut tx = self.pool.begin().await?;
        let created = sqlx::query!(
            "INSERT INTO apps (name, token_hash, created_by) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING",
            app.as_str(),
            token_hash.as_slice(),
            actor
        )
        .execute(&mut *tx)
        .await?;
        if created.rows_affected() == 0 {
            return Ok(false);
        }
        audit_log::append(&mut tx, actor, "app created", &format!("app {app}"), json!({})).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// All applications, by name.
    pub async fn apps(&self) -> Result<Vec<App>, LedgerError> {
        let rows = sqlx::query!(
            r#"SELECT name, created_by, created_at,
                      coalesce((SELECT jsonb_agg(jsonb_build_object('account', account, 'role', role) ORDER BY account)
                                FROM policy_grants WHERE app = name), '[]') AS "grants!: Json<Vec<Granted>>"
               FROM apps ORDER BY name"#
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter()
            .map(|row| {
                let name = Name::parse(&row.name, "app").map_err(|_| LedgerError::Unreadable("apps.name"))?;
                Ok(App { name, created_by: row.created_by, created_at: row.created_at, grants: row.grants.0 })
            })
            .collect()
    }

    /// Whether the application exists.
    pub async fn has_app(&self, app: &Name) -> Result<bool, LedgerError> {
        let exists =
            sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM apps WHERE name = $1) AS "there!""#, app.as_str());
        Ok(exists.fetch_one(&self.pool).await?)
    }

    /// Grants an account a role on the policies of an application; without a role, takes the grant back. Returns `false`
    /// when the application does not exist.
    pub async fn grant(
        &self,
        app: &Name,
        account: &AccountName,
        role: Option<Role>,
        actor: &str,
    ) -> Result<bool, LedgerError> {
        if !self.has_app(app).await? {
            return Ok(false);
        }
        let mut tx = self.pool.begin().await?;
        match role {
            Some(role) => {
                sqlx::query!(
                    "INSERT INTO policy_grants (app, account, role, granted_by) VALUES ($1, $2, $3, $4)
                     ON CONFLICT (app, account) DO UPDATE
                     SET role = excluded.role, granted_by = excluded.granted_by, granted_at = now()",
                    app.as_str(),
                    account.as_str(),
                    role.as_str(),
                    actor
                )
                .execute(&mut *tx)
                .await?
            }
            None => {
                let (app, account) = (app.as_str(), account.as_str());
                sqlx::query!("DELETE FROM policy_grants WHERE app = $1 AND account = $2", app, account)
                    .execute(&mut *tx)
                    .await?
            }
        };
        let details = json!({ "account": account, "role": role });
        audit_log::append(&mut tx, actor, "policy granted", &format!("app {app}"), details).await?;
        tx.commit().await?;
        Ok(true)
    }
}
