//! Outflows: their channels, adding items, and figures for operators. slots.rs takes items out, parked.rs has the parked ones.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{LedgerError, Outflows, audit_log, micros};
use seckill_domain::outflow::{LATENESS, Pace};

#[derive(Debug, Clone)]
pub struct NewItem {
    /// Also the receiver's Idempotency-Key.
    pub id: Uuid,
    pub channel: String,
    /// Items of one key are sent in the order of their commits.
    pub key: String,
    pub payload: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnqueueOutcome {
    Taken,
    /// An item with this id exists, in any state.
    Known,
    Full,
}

#[derive(Debug, Clone, serde::Serialize)]
pub struct ChannelFigures {
    pub name: String,
    pub rate: i32,
    pub jitter_ms: i32,
    pub paused: bool,
    pub target: String,
    pub capacity: i64,
    pub waiting: i64,
    pub oldest_at: Option<DateTime<Utc>>,
    pub parked: i64,
    pub now: DateTime<Utc>,
}

impl ChannelFigures {
    pub fn oldest_s(&self) -> i64 {
        self.oldest_at.map_or(0, |at| (self.now - at).num_seconds())
    }

    /// The target without the parts of an address that may be secret: name, password and query.
    pub fn shown_target(&self) -> String {
        without_secrets(&self.target)
    }
}

fn without_secrets(target: &str) -> String {
    let address = target.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = address.split_once("://") else { return String::new() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutflowSettings {
    pub rate: i32,
    pub jitter_ms: i32,
    pub paused: bool,
}

/// A change of a channel. `None` changes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutflowUpdate {
    pub pace: Option<Pace>,
    pub paused: Option<bool>,
}

/// Adds an item to its channel, in the caller's transaction. The key's row stays locked until the end of the transaction, so that items of
/// a key are ordered by commit. A caller with several keys must add them in a fixed order.
pub async fn enqueue(connection: &mut PgConnection, item: &NewItem) -> Result<EnqueueOutcome, LedgerError> {
    let room = sqlx::query_scalar!(
        r#"SELECT coalesce(d.items < c.capacity, true) AS "room!"
           FROM outflow_channels c LEFT JOIN outflow_depths d ON d.channel = c.name WHERE c.name = $1"#,
        item.channel
    );
    if room.fetch_optional(&mut *connection).await? == Some(false) {
        let known =
            sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM outflow_items WHERE id = $1) AS "known!""#, item.id);
        return Ok(if known.fetch_one(connection).await? { EnqueueOutcome::Known } else { EnqueueOutcome::Full });
    }
    add_or_lock_key(connection, &item.channel, &item.key).await?;
    let taken = sqlx::query!(
        "INSERT INTO outflow_items (id, channel, key, payload) VALUES ($1, $2, $3, $4) ON CONFLICT (id) DO NOTHING",
        item.id,
        item.channel,
        item.key,
        item.payload
    )
    .execute(&mut *connection)
    .await?;
    if taken.rows_affected() == 1 {
        return Ok(EnqueueOutcome::Taken);
    }
    drop_key_if_empty(connection, &item.channel, &item.key).await?;
    Ok(EnqueueOutcome::Known)
}

/// Adds a key's row, or locks it. It comes before the key's items in every transaction's lock order.
pub(crate) async fn add_or_lock_key(
    connection: &mut PgConnection,
    channel: &str,
    key: &str,
) -> Result<(), LedgerError> {
    sqlx::query!(
        "INSERT INTO outflow_keys (channel, key, turn_at) VALUES ($1, $2, clock_timestamp())
         ON CONFLICT (channel, key) DO UPDATE SET turn_at = outflow_keys.turn_at",
        channel,
        key
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Deletes a key without waiting items. Returns whether it did. The caller holds the key's row lock.
pub(crate) async fn drop_key_if_empty(
    connection: &mut PgConnection,
    channel: &str,
    key: &str,
) -> Result<bool, LedgerError> {
    let dropped = sqlx::query!(
        "DELETE FROM outflow_keys WHERE channel = $1 AND key = $2
           AND NOT EXISTS (SELECT FROM outflow_items i WHERE i.channel = $1 AND i.key = $2
                           AND i.status IN ('pending', 'sending'))",
        channel,
        key
    )
    .execute(connection)
    .await?;
    Ok(dropped.rows_affected() == 1)
}

/// Writes a change, with a line of the audit log for each part.
async fn write_terms(tx: &mut PgConnection, name: &str, update: OutflowUpdate, actor: &str) -> Result<(), LedgerError> {
    let OutflowUpdate { pace, paused } = update;
    sqlx::query!(
        "UPDATE outflow_channels
         SET rate = coalesce($2::integer, rate), jitter_ms = coalesce($3::integer, jitter_ms),
             gap_us = coalesce($4::bigint, gap_us), paused = coalesce($5::boolean, paused),
             next_at = CASE WHEN $4::bigint IS NULL THEN next_at
                            ELSE greatest(next_at, clock_timestamp()) + interval '1 s'
                                 + greatest(jitter_ms, $3::integer) * interval '1 ms' + $6::bigint * interval '1 us' END
         WHERE name = $1",
        name,
        pace.map(|pace| pace.rate().cast_signed()),
        pace.map(|pace| pace.jitter_ms().cast_signed()),
        pace.map(Pace::gap_us),
        paused,
        micros(LATENESS)
    )
    .execute(&mut *tx)
    .await?;
    if let Some(pace) = pace {
        let details = serde_json::json!({ "rate": pace.rate(), "jitter_ms": pace.jitter_ms() });
        audit_log::append(&mut *tx, actor, "set outflow rate", &format!("outflow {name}"), details).await?;
    }
    if let Some(paused) = paused {
        let action = if paused { "pause outflow" } else { "resume outflow" };
        audit_log::append(&mut *tx, actor, action, &format!("outflow {name}"), serde_json::json!({})).await?;
    }
    Ok(())
}

impl Outflows {
    /// Adds an item to its channel, in its own transaction.
    pub async fn enqueue_outflow(&self, item: &NewItem) -> Result<EnqueueOutcome, LedgerError> {
        let mut tx = self.0.begin().await?;
        let enqueued = enqueue(&mut tx, item).await?;
        tx.commit().await?;
        Ok(enqueued)
    }

    /// Creates a channel. Returns `false` if the name is taken.
    pub async fn create_outflow(
        &self,
        name: &str,
        pace: Pace,
        target: &str,
        capacity: i64,
        actor: &str,
    ) -> Result<bool, LedgerError> {
        let mut tx = self.0.begin().await?;
        let made = sqlx::query!(
            "INSERT INTO outflow_channels (name, rate, jitter_ms, gap_us, target, capacity) VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT (name) DO NOTHING",
            name,
            pace.rate().cast_signed(),
            pace.jitter_ms().cast_signed(),
            pace.gap_us(),
            target,
            capacity
        )
        .execute(&mut *tx)
        .await?;
        if made.rows_affected() == 0 {
            return Ok(false);
        }
        let details = serde_json::json!({ "rate": pace.rate(), "target": target });
        audit_log::append(&mut tx, actor, "create outflow", &format!("outflow {name}"), details).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Creates the outflow for a payment channel's refunds if it is missing, and updates its target. An existing outflow keeps its rate.
    /// Returns the gap between its slots, in microseconds.
    pub async fn ensure_refund_outflow(
        &self,
        name: &str,
        payment_channel: &str,
        pace: Pace,
        target: &str,
    ) -> Result<i64, LedgerError> {
        let gap_us = sqlx::query_scalar!(
            "INSERT INTO outflow_channels (name, rate, jitter_ms, gap_us, target, payment_channel)
             VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT (name) DO UPDATE SET target = $5, payment_channel = $6 RETURNING gap_us",
            name,
            pace.rate().cast_signed(),
            pace.jitter_ms().cast_signed(),
            pace.gap_us(),
            target,
            payment_channel
        );
        Ok(gap_us.fetch_one(&self.0.pool).await?)
    }

    /// Changes a channel's settings to the result of `decide`, with a line in the audit log. Returns `false` if there is no such channel. A
    /// paused channel still uses its claimed slots (100 ms). More than a second lies between the slots of two rates.
    pub async fn change_outflow<E: From<LedgerError>>(
        &self,
        name: &str,
        actor: &str,
        decide: impl FnOnce(OutflowSettings) -> Result<OutflowUpdate, E>,
    ) -> Result<bool, E> {
        let mut tx = self.0.begin().await.map_err(LedgerError::from)?;
        let terms = sqlx::query_as!(
            OutflowSettings,
            "SELECT rate, jitter_ms, paused FROM outflow_channels WHERE name = $1 FOR NO KEY UPDATE",
            name
        );
        let terms = terms.fetch_optional(&mut *tx).await.map_err(LedgerError::from)?;
        let Some(terms) = terms else { return Ok(false) };
        let update = decide(terms)?;
        if update.pace.is_some() || update.paused.is_some() {
            write_terms(&mut tx, name, update, actor).await?;
            tx.commit().await.map_err(LedgerError::from)?;
        }
        Ok(true)
    }

    /// Counts the waiting items of each channel, for the queue limits and for metrics. Writes nothing for a channel that stays empty.
    pub async fn count_outflow(&self) -> Result<(), LedgerError> {
        self.0.run(sqlx::query!(
            "INSERT INTO outflow_depths (channel, items, at)
             SELECT name, items, now()
             FROM (SELECT c.name, d.items AS before, (SELECT count(*) FROM outflow_items i
                                                      WHERE i.channel = c.name AND i.status IN ('pending', 'sending')) AS items
                   FROM outflow_channels c LEFT JOIN outflow_depths d ON d.channel = c.name
                   WHERE coalesce(d.at <= now() - interval '900 ms', true)) AS counted
             WHERE items > 0 OR before IS DISTINCT FROM 0
             ON CONFLICT (channel) DO UPDATE SET items = EXCLUDED.items, at = EXCLUDED.at"
        )).await
    }

    pub async fn outflow_figures(&self) -> Result<Vec<ChannelFigures>, LedgerError> {
        Ok(sqlx::query_as!(
            ChannelFigures,
            r#"SELECT c.name, c.rate, c.jitter_ms, c.paused, c.target, c.capacity, now() AS "now!",
                      coalesce(d.items, 0) AS "waiting!",
                      (SELECT min(i.created_at) FROM outflow_items i
                       WHERE i.channel = c.name AND i.status || '' IN ('pending', 'sending')) AS oldest_at,
                      (SELECT count(*) FROM outflow_items i WHERE i.channel = c.name AND i.status = 'parked') AS "parked!"
               FROM outflow_channels c LEFT JOIN outflow_depths d ON d.channel = c.name ORDER BY c.name"#
        )
        .fetch_all(&self.0.pool)
        .await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_shown_without_its_secrets() {
        let shown = without_secrets;
        assert_eq!(shown("https://shop.example/take"), "https://shop.example/take");
        assert_eq!(shown("https://ann:secret@shop.example:8443/take?key=secret#x"), "https://shop.example:8443/take");
        assert_eq!(shown("http://shop.example?key=secret"), "http://shop.example");
    }
}
