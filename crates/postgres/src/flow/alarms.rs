//! Alarms: raised while something is wrong, and cleared when it no longer is.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use sqlx::PgConnection;
use strum::VariantArray;

use crate::{Alarms, LedgerError};
use seckill_domain::alarm::{AlarmKind, Trouble};
use seckill_domain::message::OutboxKind;

/// Row limit per index of a backlog that people see.
const BACKLOG_MAX: i64 = 10_000;
/// Row limit per index for alarms and metrics, which count every few seconds.
const WATCHED_MAX: i64 = 200_000;

#[derive(Debug, Clone)]
pub struct Alarm {
    pub id: i64,
    pub kind: String,
    pub subject: String,
    pub details: Value,
    pub raised_at: DateTime<Utc>,
    pub cleared_at: Option<DateTime<Utc>>,
    pub acknowledged_by: Option<String>,
    pub acknowledged_at: Option<DateTime<Utc>>,
    pub note: Option<String>,
    /// While the webhook is told nothing of it.
    pub muted_until: Option<DateTime<Utc>>,
    pub muted_by: Option<String>,
    pub mute_note: Option<String>,
}

/// An alarm for the webhook. Each is sent twice: when it is raised, and when it is cleared.
#[derive(Debug, Clone)]
pub struct UnsentAlarm {
    pub id: i64,
    pub kind: String,
    pub subject: String,
    pub details: Value,
    pub raised_at: DateTime<Utc>,
    pub cleared_at: Option<DateTime<Utc>>,
    /// Whether to send that it was raised. If `false`: that it was cleared.
    pub raised: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct AlarmChanges {
    pub raised: u64,
    pub cleared: u64,
    pub open: i64,
}

/// Messages of one kind that are still to be done.
#[derive(Debug, Clone, serde::Serialize, utoipa::ToSchema)]
pub struct Backlog {
    pub kind: String,
    pub pending: i64,
    pub parked: i64,
    // The age of the oldest pending message, in seconds.
    pub oldest_s: i64,
    /// Whether there may be more: counting ends at 10000.
    pub more: bool,
}

/// Counts at most `most` pending rows of each kind, and at most `most` parked rows, by partial indexes.
async fn backlog_on(connection: &mut PgConnection, most: i64) -> Result<Vec<Backlog>, LedgerError> {
    let kinds: Vec<String> = OutboxKind::VARIANTS.iter().map(OutboxKind::to_string).collect();
    // Each limit is one row larger, to show that there are more. The first index of order events has the parked ones too, at its end.
    let rows = sqlx::query!(
        r#"SELECT part AS "part!", kind AS "kind!", count(*) AS "rows!",
                  count(*) FILTER (WHERE status = 'pending') AS "pending!",
                  count(*) FILTER (WHERE status = 'parked') AS "parked!",
                  coalesce(extract(epoch FROM now() - min(created_at) FILTER (WHERE status = 'pending')), 0)::bigint
                      AS "oldest_s!"
           FROM (SELECT 1 AS part, wanted.kind, due.status, due.created_at
                 FROM unnest($2::text[]) AS wanted (kind)
                 CROSS JOIN LATERAL (
                   -- The message of a payment that is sent again ages from the moment at which it may leave.
                   SELECT o.status, CASE o.kind WHEN 'payment_requested' THEN greatest(o.created_at, o.next_attempt_at)
                                                ELSE o.created_at END AS created_at
                   FROM outbox o WHERE o.status = 'pending' AND o.kind = wanted.kind
                   ORDER BY o.next_attempt_at, o.id LIMIT $1::bigint + 1) AS due
                 UNION ALL (SELECT 3, kind, status, created_at FROM outbox WHERE status = 'parked'
                  ORDER BY id LIMIT $1::bigint + 1)
                 UNION ALL (SELECT 4, 'order_event', nullif(status, 'parked'), created_at FROM order_events
                  ORDER BY next_attempt_at, step_id LIMIT $1::bigint + 1)
                 UNION ALL (SELECT 5, 'order_event', status, created_at FROM order_events WHERE status = 'parked'
                  ORDER BY id LIMIT $1::bigint + 1)) AS to_do
           GROUP BY part, kind"#,
        most,
        &kinds
    )
    .fetch_all(connection)
    .await?;
    // The limit of pending rows is per kind. That of parked rows is for all kinds together.
    let limited_with = |part: i32, kind: &str| -> i64 {
        rows.iter().filter(|row| row.part == part && (part != 1 || row.kind == kind)).map(|row| row.rows).sum()
    };
    let mut kinds: Vec<Backlog> = Vec::new();
    for row in &rows {
        let place = kinds.iter().position(|known| known.kind == row.kind).unwrap_or_else(|| {
            kinds.push(Backlog { kind: row.kind.clone(), pending: 0, parked: 0, oldest_s: 0, more: false });
            kinds.len() - 1
        });
        // No row is pending, or parked, in two of the indexes.
        let of = &mut kinds[place];
        of.pending = (of.pending + row.pending).min(most);
        of.parked = (of.parked + row.parked).min(most);
        of.oldest_s = of.oldest_s.max(row.oldest_s);
        of.more |= limited_with(row.part, &row.kind) > most;
    }
    Ok(kinds)
}

impl Alarms {
    pub async fn open_alarm_kinds(&self) -> Result<Vec<String>, LedgerError> {
        let kinds = sqlx::query_scalar!("SELECT DISTINCT kind FROM alarms WHERE cleared_at IS NULL");
        Ok(kinds.fetch_all(&self.0.pool).await?)
    }

    /// Raises an alarm for each trouble that is not slight. Clears an alarm that was not seen for `clear_after_ms`.
    pub async fn update_alarms(
        &self,
        kind: AlarmKind,
        troubles: &[Trouble],
        clear_after_ms: i64,
    ) -> Result<AlarmChanges, LedgerError> {
        let kind = kind.as_str();
        let subjects: Vec<String> = troubles.iter().map(|trouble| trouble.subject.clone()).collect();
        let details: Vec<Value> = troubles.iter().map(|trouble| trouble.details.clone()).collect();
        let slight: Vec<bool> = troubles.iter().map(|trouble| trouble.slight).collect();
        let mut tx = self.0.begin().await?;
        sqlx::query!(
            "UPDATE alarms a SET seen_at = now(), details = wrong.details
             FROM unnest($2::text[], $3::jsonb[]) AS wrong (subject, details)
             WHERE a.kind = $1 AND a.cleared_at IS NULL AND a.subject = wrong.subject",
            kind,
            &subjects,
            &details
        )
        .execute(&mut *tx)
        .await?;
        let raised = sqlx::query!(
            "INSERT INTO alarms (kind, subject, details)
             SELECT $1, subject, details
             FROM unnest($2::text[], $3::jsonb[], $4::boolean[]) AS wrong (subject, details, slight) WHERE NOT slight
             ON CONFLICT (kind, subject) WHERE cleared_at IS NULL DO NOTHING",
            kind,
            &subjects,
            &details,
            &slight
        )
        .execute(&mut *tx)
        .await?;
        let cleared = sqlx::query!(
            "UPDATE alarms SET cleared_at = now(), attempts = 0, next_at = now()
             WHERE kind = $1 AND cleared_at IS NULL AND subject <> ALL($2)
               AND seen_at <= now() - $3::bigint * interval '1 ms'",
            kind,
            &subjects,
            clear_after_ms
        )
        .execute(&mut *tx)
        .await?;
        let open = sqlx::query_scalar!(
            r#"SELECT count(*) AS "open!" FROM alarms WHERE kind = $1 AND cleared_at IS NULL"#,
            kind
        )
        .fetch_one(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(AlarmChanges { raised: raised.rows_affected(), cleared: cleared.rows_affected(), open })
    }

    /// Claims alarms for the webhook. The claim lasts 30 s. Then the alarm is tried again, at growing intervals, for a day. A muted alarm
    /// waits until the mute ends. If it was raised and cleared meanwhile, nothing is sent.
    pub async fn unsent_alarms(&self, limit: i64) -> Result<Vec<UnsentAlarm>, LedgerError> {
        let unsent = sqlx::query_as!(
            UnsentAlarm,
            r#"UPDATE alarms SET attempts = attempts + 1,
                      next_at = now() + least(30 * power(2, least(attempts, 7)), 3600) * interval '1 second'
               WHERE id IN (SELECT id FROM alarms a
                            WHERE (NOT told_raised OR (cleared_at IS NOT NULL AND NOT told_cleared)) AND next_at <= now()
                              AND greatest(coalesce(cleared_at, raised_at),
                                           (SELECT until FROM alarm_mutes m WHERE (m.kind, m.subject) = (a.kind, a.subject)))
                                  > now() - interval '1 day'
                              AND NOT EXISTS (SELECT FROM alarm_mutes m WHERE (m.kind, m.subject) = (a.kind, a.subject)
                                              AND (m.until > now() OR NOT a.told_raised AND a.cleared_at < m.until))
                            ORDER BY next_at, id LIMIT $1 FOR UPDATE SKIP LOCKED)
               RETURNING id, kind, subject, details, raised_at, cleared_at, NOT told_raised AS "raised!""#,
            limit
        );
        Ok(unsent.fetch_all(&self.0.pool).await?)
    }

    pub async fn mark_alarm_sent(&self, id: i64, raised: bool) -> Result<(), LedgerError> {
        self.0
            .run(sqlx::query!(
            "UPDATE alarms SET told_raised = told_raised OR $2, told_cleared = told_cleared OR NOT $2, attempts = 0,
                    next_at = now()
             WHERE id = $1",
            id,
            raised
        ))
            .await
    }

    /// The receiver failed, which is no attempt of this alarm. It is due again soon.
    pub async fn postpone_alarm(&self, id: i64) -> Result<(), LedgerError> {
        self.0
            .run(sqlx::query!(
                "UPDATE alarms SET attempts = greatest(attempts - 1, 0), next_at = now() + interval '1 second' WHERE id = $1",
                id
            ))
            .await
    }

    /// The alarms of all kinds or of some, in the order of the index `alarms_newest`: newest first, but open alarms before all others.
    /// Only alarms after `before` in this list.
    pub async fn alarms(
        &self,
        kinds: Option<&[String]>,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<Alarm>, LedgerError> {
        let alarms = sqlx::query_as!(
            Alarm,
            r#"SELECT id, a.kind, a.subject, details, raised_at, cleared_at, acknowledged_by, acknowledged_at, a.note,
                      m.until AS "muted_until?", m.muted_by AS "muted_by?", m.note AS "mute_note?"
               FROM alarms a LEFT JOIN alarm_mutes m ON m.kind = a.kind AND m.subject = a.subject AND m.until > now()
               WHERE ($1::text[] IS NULL OR a.kind = ANY($1))
                 AND ($2::bigint IS NULL
                      OR (cleared_at IS NULL, id) < ((SELECT last.cleared_at IS NULL FROM alarms last WHERE last.id = $2), $2))
               ORDER BY (cleared_at IS NULL) DESC, id DESC LIMIT $3"#,
            kinds,
            before,
            limit
        );
        Ok(alarms.fetch_all(&self.0.pool).await?)
    }

    /// The backlog by kind, with order events. Reads at most `WATCHED_MAX` rows of each index, oldest first.
    pub async fn backlog(&self) -> Result<Vec<Backlog>, LedgerError> {
        backlog_on(&mut *self.0.pool.acquire().await?, WATCHED_MAX).await
    }

    /// The same for people, who look often: at most `BACKLOG_MAX` rows.
    pub async fn shown_backlog(&self) -> Result<Vec<Backlog>, LedgerError> {
        backlog_on(&mut *self.0.begin_reading().await?, BACKLOG_MAX).await
    }

    /// Counts the purchases without an order in up to `WATCHED_MAX` groups. A purchase in two groups counts twice until both are settled.
    pub async fn accepted_purchases(&self) -> Result<i64, LedgerError> {
        let accepted = sqlx::query_scalar!(
            r#"SELECT coalesce(sum(members), 0)::bigint AS "accepted!"
               FROM (SELECT members FROM purchase_groups WHERE settled_at IS NULL LIMIT $1) AS part"#,
            WATCHED_MAX
        );
        Ok(accepted.fetch_one(&self.0.pool).await?)
    }

    /// Sales of which this actor has recorded this action within the last minute.
    pub async fn sales_with(&self, actor: &str, action: &str) -> Result<Vec<Trouble>, LedgerError> {
        let sales = sqlx::query_scalar!(
            "SELECT DISTINCT subject FROM audit_log
             WHERE actor = $1 AND action = $2 AND at > now() - interval '1 minute'",
            actor,
            action
        );
        Ok(sales.fetch_all(&self.0.pool).await?.iter().map(|sale| Trouble::new(sale, json!({}))).collect())
    }

    pub async fn dead_channels(&self) -> Result<Vec<Trouble>, LedgerError> {
        let channels = sqlx::query!(
            r#"SELECT channel, count(*) AS "items!" FROM outflow_items WHERE status = 'parked' GROUP BY channel"#
        );
        let channels = channels.fetch_all(&self.0.pool).await?;
        Ok(channels.iter().map(|row| Trouble::new(&row.channel, json!({ "parked": row.items }))).collect())
    }

    /// Channels with quarantined callbacks that no operator has settled.
    pub async fn callbacks_aside(&self) -> Result<Vec<Trouble>, LedgerError> {
        let aside = sqlx::query!(
            r#"SELECT channel, count(*) AS "messages!", max(problem) AS "problem!" FROM callbacks_set_aside
               WHERE settled_at IS NULL GROUP BY channel"#
        );
        let details = |messages: i64, problem: &str| json!({ "messages": messages, "problem": problem });
        let aside = aside.fetch_all(&self.0.pool).await?;
        Ok(aside.iter().map(|row| Trouble::new(&row.channel, details(row.messages, &row.problem))).collect())
    }

    pub async fn failed_refunds(&self) -> Result<Vec<Trouble>, LedgerError> {
        let refused = sqlx::query!(
            r#"SELECT channel, count(*) AS "refunds!" FROM refunds WHERE status = 'failed' GROUP BY channel"#
        );
        let refused = refused.fetch_all(&self.0.pool).await?;
        Ok(refused.iter().map(|row| Trouble::new(&row.channel, json!({ "refunds": row.refunds }))).collect())
    }

    /// Channels with money in flight for 15 minutes.
    pub async fn stuck_money(&self) -> Result<Vec<Trouble>, LedgerError> {
        let stuck = sqlx::query!(
            r#"SELECT channel AS "channel!", count(*) AS "rows!" FROM (
                 SELECT channel FROM payments
                 WHERE status IN ('created', 'sending', 'waiting') AND created_at < now() - interval '15 minutes'
                 UNION ALL
                 SELECT r.channel FROM refunds r JOIN outflow_items i ON i.id = r.key
                 WHERE r.status = 'requested' AND i.done_at < now() - interval '15 minutes') AS stuck
               GROUP BY channel"#
        );
        let stuck = stuck.fetch_all(&self.0.pool).await?;
        Ok(stuck.iter().map(|row| Trouble::new(&row.channel, json!({ "rows": row.rows }))).collect())
    }
}
