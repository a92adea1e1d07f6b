//! Reads and writes policies as rows.

use std::time::Duration;

use serde_json::json;
use sqlx::PgConnection;

use crate::LedgerError;
use seckill_domain::limiter::{Algorithm, AlgorithmKind, ParameterSet, Parameters};
use seckill_domain::policy::{Excess, Name, NewPolicy, Policy, Range, threshold, with_threshold};

pub(crate) async fn load(tx: &mut PgConnection, app: Option<&str>) -> Result<Vec<Policy>, LedgerError> {
    let rows = sqlx::query!(
        r#"SELECT p.id, p.name, home, array_agg(a.app ORDER BY a.app) AS "apps!", spread, key, algorithm, max_permits,
                  rate, window_ms, lease_ms, floor, ceiling, target_ms, adapted, trouble_at, excess, queue_ms,
                  answer, when_down, breaker, version, created_by, updated_by, updated_at
           FROM policies p JOIN policy_apps a ON a.policy_id = p.id
           GROUP BY p.id HAVING $1::text IS NULL OR $1 = ANY(array_agg(a.app)) ORDER BY p.name, p.id"#,
        app
    )
    .fetch_all(tx)
    .await?;
    let policies = rows.into_iter().map(|row| {
        let unreadable = LedgerError::Unreadable;
        let name = |text: &str| Name::parse(text, "name").map_err(|_| unreadable("policies.name"));
        let kind: AlgorithmKind = row.algorithm.parse().map_err(|_| unreadable("policies.algorithm"))?;
        let (limit, capacity) = match kind.parameter_set() {
            ParameterSet::Bucket => (None, Some(row.max_permits)),
            ParameterSet::Window | ParameterSet::Leases => (Some(row.max_permits), None),
        };
        let parameters =
            Parameters { limit, capacity, rate: row.rate, window_ms: row.window_ms, lease_ms: row.lease_ms };
        let algorithm = Algorithm::new(kind, &parameters).map_err(|_| unreadable("policies.algorithm"))?;
        let in_force = match row.adapted {
            Some(threshold) => with_threshold(&algorithm, threshold).map_err(|_| unreadable("policies.adapted"))?,
            None => algorithm,
        };
        let excess = match (row.excess.as_str(), row.queue_ms, row.answer) {
            ("queue", Some(ms), _) => Excess::Queue { patience: Duration::from_millis(ms.unsigned_abs()) },
            ("degrade", _, Some(answer)) => Excess::Degrade { answer },
            ("shadow", ..) => Excess::Shadow,
            ("reject", ..) => Excess::Reject,
            _ => return Err(unreadable("policies.excess")),
        };
        let breaker =
            row.breaker.map(serde_json::from_value).transpose().map_err(|_| unreadable("policies.breaker"))?;
        let range = row.floor.zip(row.ceiling);
        let terms = NewPolicy {
            name: name(&row.name)?,
            apps: row.apps.iter().map(|app| name(app)).collect::<Result<_, _>>()?,
            key: row.key,
            spread: row.spread,
            algorithm,
            range: range.map(|(floor, ceiling)| Range { floor, ceiling, target_ms: row.target_ms }),
            excess,
            when_down: row.when_down.parse().map_err(|_| unreadable("policies.when_down"))?,
            breaker,
        };
        Ok(Policy {
            id: row.id,
            home: name(&row.home)?,
            version: row.version,
            terms,
            algorithm: in_force,
            trouble_at: row.trouble_at,
            created_by: row.created_by,
            updated_by: row.updated_by,
            updated_at_ms: row.updated_at.timestamp_millis(),
        })
    });
    policies.collect()
}

/// Writes a new policy, or the new terms of an existing one. Name and home of an existing one stay. Returns its id.
pub(crate) async fn write(
    tx: &mut PgConnection,
    existing: Option<i64>,
    new: &NewPolicy,
    actor: &str,
) -> Result<i64, LedgerError> {
    let Parameters { limit, capacity, rate, window_ms, lease_ms } = new.algorithm.parameters();
    let max_permits = match new.algorithm.kind().parameter_set() {
        ParameterSet::Bucket => capacity,
        ParameterSet::Window | ParameterSet::Leases => limit,
    };
    let (queue_ms, answer) = match &new.excess {
        Excess::Queue { patience } => (i64::try_from(patience.as_millis()).ok(), None),
        Excess::Degrade { answer } => (None, Some(answer)),
        Excess::Reject | Excess::Shadow => (None, None),
    };
    let id = sqlx::query_scalar!(
        "INSERT INTO policies AS p (id, name, home, spread, key, algorithm, max_permits, rate, window_ms, lease_ms, floor,
                                    ceiling, target_ms, adapted, excess, queue_ms, answer, when_down, breaker, created_by,
                                    updated_by)
         OVERRIDING SYSTEM VALUE
         VALUES (coalesce($1::bigint, nextval(pg_get_serial_sequence('policies', 'id'))), $2, $3, $4, $5, $6, $7, $8, $9, $10,
                 $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $20)
         ON CONFLICT (id) DO UPDATE
         SET spread = $4, key = $5, algorithm = $6, max_permits = $7, rate = $8, window_ms = $9, lease_ms = $10, floor = $11,
             ceiling = $12, target_ms = $13, adapted = $14, excess = $15, queue_ms = $16, answer = $17, when_down = $18,
             breaker = $19, updated_by = $20, updated_at = now(), version = p.version + 1, trouble_at = NULL
         RETURNING id",
        existing,
        new.name.as_str(),
        new.apps.first().map(Name::as_str),
        new.spread,
        new.key,
        new.algorithm.kind().as_str(),
        max_permits.unwrap_or(-1),
        rate,
        window_ms,
        lease_ms,
        new.range.map(|range| range.floor),
        new.range.map(|range| range.ceiling),
        new.range.and_then(|range| range.target_ms),
        new.range.and_then(|_| threshold(&new.algorithm)),
        new.excess.as_str(),
        queue_ms,
        answer,
        new.when_down.as_str(),
        new.breaker.as_ref().map(|terms| json!(terms)),
        actor
    );
    Ok(id.fetch_one(tx).await?)
}
