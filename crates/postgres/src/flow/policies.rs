//! Stores policies. Every instance loads all of them.

use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::flow::apps::TokenHash;
use crate::flow::policy_rows::{load, write};
use crate::sales::catalog::ALIVE_FOR;
use crate::{LedgerError, Policies, audit_log};
use seckill_domain::account::Actor;
use seckill_domain::policy::{Name, NewPolicy, Policy};

#[derive(Debug, PartialEq, Eq)]
pub enum PolicyChange {
    /// Done. Instances that have loaded this version apply the change.
    At(i64),
    NotThere,
    /// Several policies have this name, in different applications. A change is for one policy.
    Ambiguous,
    /// The policy also belongs to an application whose policies the actor may not change.
    NotOwned,
}

pub struct PolicyPlace {
    pub newest: i64,
    /// The number of live instances, and the rank of this one by id.
    pub instances: u32,
    pub rank: u32,
}

/// All policies and applications, read in one snapshot.
pub struct PolicySet {
    pub version: i64,
    pub policies: Vec<Policy>,
    pub tokens: Vec<TokenHash>,
}

impl Policies {
    pub async fn policies_and_tokens(&self) -> Result<PolicySet, LedgerError> {
        let mut tx = self.0.begin_snapshot(&self.0.pool).await?;
        let version = sqlx::query_scalar!("SELECT version FROM policy_version").fetch_one(&mut *tx).await?;
        let policies = load(&mut tx, None).await?;
        let tokens = self.app_tokens(&mut tx).await?;
        Ok(PolicySet { version, policies, tokens })
    }

    /// Creates a policy, or changes the policy of these applications with this name. Its counts stay.
    pub async fn set_policy(&self, new: &NewPolicy, actor: &Actor) -> Result<PolicyChange, LedgerError> {
        let mut tx = self.0.begin().await?;
        let apps: Vec<String> = new.apps.iter().map(Name::to_string).collect();
        let before = match find(&mut tx, new.name.as_str(), &apps, actor).await? {
            Ok(before) => before,
            Err(refused) => return Ok(refused),
        };
        let id = write(&mut tx, before.as_ref().map(|policy| policy.id), new, &actor.name).await?;
        sqlx::query!("DELETE FROM policy_apps WHERE policy_id = $1 AND app <> ALL($2)", id, &apps)
            .execute(&mut *tx)
            .await?;
        sqlx::query!(
            "INSERT INTO policy_apps (app, name, policy_id) SELECT unnest($3::text[]), $2, $1
             ON CONFLICT (app, name) DO NOTHING",
            id,
            new.name.as_str(),
            &apps
        )
        .execute(&mut *tx)
        .await?;
        let details =
            json!({ "before": before.as_ref().map(|policy| policy.terms.describe()), "after": new.describe() });
        record(&mut tx, &actor.name, "policy set", &new.name, &new.apps, details).await?;
        commit(tx).await
    }

    pub async fn delete_policy(&self, name: &Name, apps: &[Name], actor: &Actor) -> Result<PolicyChange, LedgerError> {
        let mut tx = self.0.begin().await?;
        let names: Vec<String> = apps.iter().map(Name::to_string).collect();
        let policy = match find(&mut tx, name.as_str(), &names, actor).await? {
            Ok(Some(policy)) => policy,
            Ok(None) => return Ok(PolicyChange::NotThere),
            Err(refused) => return Ok(refused),
        };
        sqlx::query!("DELETE FROM policies WHERE id = $1", policy.id).execute(&mut *tx).await?;
        let details = json!({ "before": policy.terms.describe() });
        record(&mut tx, &actor.name, "policy deleted", name, &policy.terms.apps, details).await?;
        commit(tx).await
    }

    /// Moves a threshold. Returns `false` if the policy has changed since it was read, or if its threshold moved less than `apart_ms` ago.
    pub async fn move_threshold(
        &self,
        policy: &Policy,
        present: i64,
        threshold: i64,
        apart_ms: i64,
        actor: &str,
        details: Value,
    ) -> Result<bool, LedgerError> {
        let mut tx = self.0.begin().await?;
        let moved = sqlx::query!(
            "UPDATE policies SET adapted = $3, adapted_at = now(), version = version + 1,
                    trouble_at = CASE WHEN $3 < $5::bigint THEN $5 ELSE trouble_at END
             WHERE id = $1 AND version = $2
               AND (adapted_at IS NULL OR adapted_at < now() - $4::bigint * interval '1 ms')",
            policy.id,
            policy.version,
            threshold,
            apart_ms,
            present
        )
        .execute(&mut *tx)
        .await?;
        if moved.rows_affected() == 0 {
            return Ok(false);
        }
        record(&mut tx, actor, "threshold moved", &policy.terms.name, &policy.terms.apps, details).await?;
        tx.commit().await?;
        Ok(true)
    }

    pub async fn policies(&self, app: Option<&Name>) -> Result<Vec<Policy>, LedgerError> {
        load(&mut *self.0.pool.acquire().await?, app.map(Name::as_str)).await
    }

    pub async fn policy_version(&self) -> Result<i64, LedgerError> {
        Ok(sqlx::query_scalar!("SELECT version FROM policy_version").fetch_one(&self.0.pool).await?)
    }

    pub async fn record_policy_version(&self, instance: Uuid, version: i64) -> Result<PolicyPlace, LedgerError> {
        let row = sqlx::query!(
            r#"WITH noted AS (
                 UPDATE instances SET policy_version = $2 WHERE id = $1 AND policy_version <> $2)
               SELECT count(*) AS "alive!", count(*) FILTER (WHERE id < $1) AS "rank!",
                      (SELECT version FROM policy_version) AS "newest!"
               FROM instances WHERE seen_at > now() - $3::text::interval OR id = $1"#,
            instance,
            version,
            ALIVE_FOR
        )
        .fetch_one(&self.0.pool)
        .await?;
        let to_u32 = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(PolicyPlace { newest: row.newest, instances: to_u32(row.alive), rank: to_u32(row.rank) })
    }
}

/// The policy of any of these applications with this name; or why the actor may not change it. Changes run one after another.
async fn find(
    tx: &mut PgConnection,
    name: &str,
    apps: &[String],
    actor: &Actor,
) -> Result<Result<Option<Policy>, PolicyChange>, LedgerError> {
    sqlx::query!("SELECT version FROM policy_version FOR UPDATE").fetch_one(&mut *tx).await?;
    let ids =
        sqlx::query_scalar!("SELECT DISTINCT policy_id FROM policy_apps WHERE name = $1 AND app = ANY($2)", name, apps)
            .fetch_all(&mut *tx)
            .await?;
    if ids.len() > 1 {
        return Ok(Err(PolicyChange::Ambiguous));
    }
    // An unreadable policy of another application must not matter.
    let Some(id) = ids.first() else { return Ok(Ok(None)) };
    let found = load(tx, None).await?.into_iter().find(|policy| policy.id == *id);
    let is_owned = found.as_ref().is_none_or(|policy| actor.may_change(&policy.terms.apps));
    Ok(if is_owned { Ok(found) } else { Err(PolicyChange::NotOwned) })
}

async fn record(
    tx: &mut PgConnection,
    actor: &str,
    action: &str,
    policy: &Name,
    apps: &[Name],
    details: Value,
) -> Result<(), LedgerError> {
    let apps: Vec<_> = apps.iter().map(Name::as_str).collect();
    audit_log::append(tx, actor, action, &format!("policy {policy} of {}", apps.join(", ")), details).await
}

async fn commit(mut tx: sqlx::Transaction<'_, sqlx::Postgres>) -> Result<PolicyChange, LedgerError> {
    let version = sqlx::query_scalar!("SELECT version FROM policy_version").fetch_one(&mut *tx).await?;
    tx.commit().await?;
    Ok(PolicyChange::At(version))
}
