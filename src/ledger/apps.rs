//! Applications that may ask for permits, and who may see and change their policies.

use serde_json::json;

use super::{Ledger, LedgerError};
use crate::domain::policy::{Name, Role};

impl Ledger {
    /// Makes an application, or `false` where it is there already.
    pub async fn create_app(&self, app: &Name, token_hash: &[u8; 32], actor: &str) -> Result<bool, LedgerError> {
        let mut tx = self.pool.begin().await?;
        let made = sqlx::query!(
            "INSERT INTO apps (name, token_hash, created_by) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING",
            app.as_str(),
            token_hash.as_slice(),
            actor
        )
        .execute(&mut *tx)
        .await?;
        if made.rows_affected() == 0 {
            return Ok(false);
        }
        sqlx::query!(
            "INSERT INTO audit_log (actor, action, subject) VALUES ($1, 'app created', $2)",
            actor,
            format!("app {app}")
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Whether there is such an application.
    pub async fn has_app(&self, app: &Name) -> Result<bool, LedgerError> {
        let there =
            sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM apps WHERE name = $1) AS "there!""#, app.as_str());
        Ok(there.fetch_one(&self.pool).await?)
    }

    /// Lets an account see an application's policies, or change them; `false` where there is no such application.
    pub async fn grant(&self, app: &Name, account: &str, role: Role, actor: &str) -> Result<bool, LedgerError> {
        if !self.has_app(app).await? {
            return Ok(false);
        }
        let mut tx = self.pool.begin().await?;
        sqlx::query!(
            "INSERT INTO policy_grants (app, account, role, granted_by) VALUES ($1, $2, $3, $4)
             ON CONFLICT (app, account) DO UPDATE
             SET role = excluded.role, granted_by = excluded.granted_by, granted_at = now()",
            app.as_str(),
            account,
            role.as_str(),
            actor
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!(
            "INSERT INTO audit_log (actor, action, subject, details) VALUES ($1, 'policy granted', $2, $3)",
            actor,
            format!("app {app}"),
            json!({ "account": account, "role": role.as_str() })
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(true)
    }
}
