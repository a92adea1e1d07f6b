//! What people say about alarms: that one is known, and that the webhook shall not be told of one for a while.

use serde_json::json;
use sqlx::PgConnection;

use crate::{Alarms, LedgerError, audit_log};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandledAlarm {
    Done,
    Unknown,
    /// The alarm is cleared, or it is not muted. Nothing was changed.
    Refused,
}

struct NamedAlarm {
    kind: String,
    subject: String,
    is_open: bool,
}

impl NamedAlarm {
    /// As the audit log names it.
    fn name(&self) -> String {
        format!("alarm {} {}", self.kind, self.subject)
    }
}

/// Locks an alarm of one of these kinds, or of any.
async fn lock(tx: &mut PgConnection, id: i64, kinds: Option<&[String]>) -> Result<Option<NamedAlarm>, LedgerError> {
    let alarm = sqlx::query_as!(
        NamedAlarm,
        r#"SELECT kind, subject, cleared_at IS NULL AS "is_open!" FROM alarms
           WHERE id = $1 AND ($2::text[] IS NULL OR kind = ANY($2)) FOR UPDATE"#,
        id,
        kinds
    );
    Ok(alarm.fetch_optional(tx).await?)
}

impl Alarms {
    /// Says that an open alarm is known. A later call replaces the note.
    pub async fn acknowledge_alarm(
        &self,
        id: i64,
        kinds: Option<&[String]>,
        note: &str,
        actor: &str,
    ) -> Result<HandledAlarm, LedgerError> {
        let mut tx = self.0.begin().await?;
        let Some(alarm) = lock(&mut tx, id, kinds).await? else { return Ok(HandledAlarm::Unknown) };
        if !alarm.is_open {
            return Ok(HandledAlarm::Refused);
        }
        sqlx::query!(
            "UPDATE alarms SET acknowledged_by = $2, acknowledged_at = now(), note = $3 WHERE id = $1",
            id,
            actor,
            note
        )
        .execute(&mut *tx)
        .await?;
        audit_log::append(&mut tx, actor, "alarm acknowledged", &alarm.name(), json!({ "note": note })).await?;
        tx.commit().await?;
        Ok(HandledAlarm::Done)
    }

    /// Tells the webhook nothing of alarms of this kind and subject for so many minutes.
    pub async fn mute_alarm(
        &self,
        id: i64,
        kinds: Option<&[String]>,
        minutes: i64,
        note: &str,
        actor: &str,
    ) -> Result<HandledAlarm, LedgerError> {
        let mut tx = self.0.begin().await?;
        let Some(alarm) = lock(&mut tx, id, kinds).await? else { return Ok(HandledAlarm::Unknown) };
        sqlx::query!(
            "INSERT INTO alarm_mutes (kind, subject, until, muted_by, note)
             VALUES ($1, $2, now() + $3::bigint * interval '1 minute', $4, $5)
             ON CONFLICT (kind, subject) DO UPDATE
             SET until = excluded.until, muted_by = excluded.muted_by, note = excluded.note",
            alarm.kind,
            alarm.subject,
            minutes,
            actor,
            note
        )
        .execute(&mut *tx)
        .await?;
        let details = json!({ "minutes": minutes, "note": note });
        audit_log::append(&mut tx, actor, "alarm muted", &alarm.name(), details).await?;
        tx.commit().await?;
        Ok(HandledAlarm::Done)
    }

    /// Ends a mute. The webhook is told at once of what was raised meanwhile and is still wrong.
    pub async fn unmute_alarm(
        &self,
        id: i64,
        kinds: Option<&[String]>,
        actor: &str,
    ) -> Result<HandledAlarm, LedgerError> {
        let mut tx = self.0.begin().await?;
        let Some(alarm) = lock(&mut tx, id, kinds).await? else { return Ok(HandledAlarm::Unknown) };
        let ended = sqlx::query!(
            "UPDATE alarm_mutes SET until = now() WHERE kind = $1 AND subject = $2 AND until > now()",
            alarm.kind,
            alarm.subject
        );
        if ended.execute(&mut *tx).await?.rows_affected() == 0 {
            return Ok(HandledAlarm::Refused);
        }
        audit_log::append(&mut tx, actor, "alarm unmuted", &alarm.name(), json!({})).await?;
        tx.commit().await?;
        Ok(HandledAlarm::Done)
    }
}
