//! Applications that may ask for permits, and the grants of accounts on their policies.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use sqlx::types::Json;
use utoipa::ToSchema;

use crate::{LedgerError, Policies, audit_log};
use seckill_domain::account::{AccountName, AppToken, Granted};
use seckill_domain::policy::{Name, Role};

/// An application that may ask for permits.
#[derive(Serialize, ToSchema)]
pub struct App {
    pub name: Name,
    pub created_by: String,
    #[serde(rename = "created_at_ms", with = "chrono::serde::ts_milliseconds")]
    #[schema(value_type = i64)]
    pub created_at: DateTime<Utc>,
    /// All grants for an admin; for others only their own.
    pub grants: Vec<Granted>,
    /// The valid tokens, the newest first, without what is secret. There are two while a token is replaced.
    pub tokens: Vec<AppToken>,
}

/// A valid token, as instances keep it.
pub struct TokenHash {
    pub hash: [u8; 32],
    pub app: Name,
    pub ends_at_ms: Option<i64>,
}

pub enum Rotation {
    /// An instance that has loaded this version accepts the new token.
    Done { version: i64, old_ends_at: DateTime<Utc> },
    /// Unknown application, or an application without a token.
    NotThere,
    /// The application already has two tokens. The old one ends at this time.
    TwoTokens { until: DateTime<Utc> },
}

impl Policies {
    /// Returns `false` if it exists already.
    pub async fn create_app(&self, app: &Name, token_hash: &[u8; 32], actor: &str) -> Result<bool, LedgerError> {
        let mut tx = self.0.begin().await?;
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

    pub async fn apps(&self) -> Result<Vec<App>, LedgerError> {
        let rows = sqlx::query!(
            r#"SELECT name, created_by, created_at,
                      coalesce((SELECT jsonb_agg(jsonb_build_object('account', account, 'role', role) ORDER BY account)
                                FROM policy_grants WHERE app = name), '[]') AS "grants!: Json<Vec<Granted>>",
                      coalesce((SELECT jsonb_agg(jsonb_build_object(
                                  'id', left(encode(hash, 'hex'), 8),
                                  'created_at_ms', floor(extract(epoch FROM made) * 1000)::bigint,
                                  'ends_at_ms', floor(extract(epoch FROM ends) * 1000)::bigint) ORDER BY made DESC)
                                FROM (VALUES (token_hash, token_created_at, NULL),
                                             (old_token_hash, old_token_created_at, old_token_ends_at)) AS t (hash, made, ends)
                                WHERE hash IS NOT NULL AND (ends IS NULL OR ends > now())), '[]')
                        AS "tokens!: Json<Vec<AppToken>>"
               FROM apps ORDER BY name"#
        )
        .fetch_all(&self.0.pool)
        .await?;
        rows.into_iter()
            .map(|row| {
                let name = Name::parse(&row.name, "app").map_err(|_| LedgerError::Unreadable("apps.name"))?;
                let (grants, tokens) = (row.grants.0, row.tokens.0);
                Ok(App { name, created_by: row.created_by, created_at: row.created_at, grants, tokens })
            })
            .collect()
    }

    /// Replaces an application's token. The old token stays valid for `overlap_ms`. If that is 0, all old tokens end now.
    pub async fn rotate_token(
        &self,
        app: &Name,
        token_hash: &[u8; 32],
        overlap_ms: i64,
        actor: &str,
    ) -> Result<Rotation, LedgerError> {
        let mut tx = self.0.begin().await?;
        let before = sqlx::query!(
            r#"SELECT old_token_ends_at AS "until", coalesce(old_token_ends_at > now(), false) AS "overlaps!"
               FROM apps WHERE name = $1 AND token_hash IS NOT NULL FOR UPDATE"#,
            app.as_str()
        );
        let Some(before) = before.fetch_optional(&mut *tx).await? else { return Ok(Rotation::NotThere) };
        if let Some(until) = before.until.filter(|_| before.overlaps && overlap_ms > 0) {
            return Ok(Rotation::TwoTokens { until });
        }
        let old_ends_at = sqlx::query_scalar!(
            r#"UPDATE apps SET old_token_hash = token_hash, old_token_created_at = token_created_at,
                      old_token_ends_at = now() + $3::bigint * interval '1 ms', token_hash = $2, token_created_at = now()
               WHERE name = $1 RETURNING old_token_ends_at AS "ends!""#,
            app.as_str(),
            token_hash.as_slice(),
            overlap_ms
        )
        .fetch_one(&mut *tx)
        .await?;
        let details = json!({ "old_token_ends_at_ms": old_ends_at.timestamp_millis() });
        audit_log::append(&mut tx, actor, "app token rotated", &format!("app {app}"), details).await?;
        let version = sqlx::query_scalar!("SELECT version FROM policy_version").fetch_one(&mut *tx).await?;
        tx.commit().await?;
        Ok(Rotation::Done { version, old_ends_at })
    }

    pub(super) async fn app_tokens(&self, tx: &mut PgConnection) -> Result<Vec<TokenHash>, LedgerError> {
        let rows = sqlx::query!(
            r#"SELECT name AS "name!", token_hash AS "hash!", NULL::timestamptz AS ends_at FROM apps WHERE token_hash IS NOT NULL
               UNION ALL
               SELECT name, old_token_hash, old_token_ends_at FROM apps WHERE old_token_ends_at > now()"#
        );
        let tokens = rows.fetch_all(tx).await?.into_iter().map(|row| {
            Ok(TokenHash {
                hash: row.hash.try_into().map_err(|_| LedgerError::Unreadable("apps.token_hash"))?,
                app: Name::parse(&row.name, "app").map_err(|_| LedgerError::Unreadable("apps.name"))?,
                ends_at_ms: row.ends_at.map(|at| at.timestamp_millis()),
            })
        });
        tokens.collect()
    }

    pub async fn has_app(&self, app: &Name) -> Result<bool, LedgerError> {
        let exists =
            sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM apps WHERE name = $1) AS "there!""#, app.as_str());
        Ok(exists.fetch_one(&self.0.pool).await?)
    }

    /// Grants an account a role on an application's policies, or revokes it. Returns `false` if the application does not exist.
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
        let mut tx = self.0.begin().await?;
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
        let action = if role.is_some() { "policy granted" } else { "policy grant removed" };
        audit_log::append(&mut tx, actor, action, &format!("app {app}"), details).await?;
        tx.commit().await?;
        Ok(true)
    }
}
