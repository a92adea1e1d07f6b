//! Telling a webhook of alarms: each twice, when it is raised and when it is over.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::FlowError;
use crate::domain::step::Step;
use crate::ledger::Ledger;
use crate::ledger::flow::alarms::UnsentAlarm;
use seckill_webhook::{HttpAnswer, HttpSender, SendError};
use seckill_webhook::{Secret, signed_headers};

/// Posts alarms to a webhook, signed (Standard Webhooks).
#[derive(Clone)]
pub struct AlarmWebhook {
    pub ledger: Ledger,
    pub url: String,
    pub secret: Secret,
    pub poster: Arc<HttpSender>,
}

impl AlarmWebhook {
    const BATCH_MAX: i64 = 20;
    /// Well within the half minute that an alarm is taken for.
    const PATIENCE: Duration = Duration::from_secs(1);

    /// Tells what is untold. What is not heard is told again later, under the same id.
    pub async fn step(&self) -> Result<Step, FlowError> {
        let untold = self.ledger.unsent_alarms(Self::BATCH_MAX).await?;
        let now_s = self.ledger.now_ms().await? / 1000;
        for alarm in &untold {
            match self.tell(alarm, now_s).await {
                Ok(answer) if (200..300).contains(&answer.status) => {
                    self.ledger.mark_alarm_sent(alarm.id, alarm.raised).await?;
                }
                Ok(answer) => tracing::warn!(alarm = alarm.id, status = answer.status, "the alarms' webhook refused"),
                Err(error) => tracing::warn!(alarm = alarm.id, %error, "the alarms' webhook did not hear"),
            }
        }
        Ok(Step::after(untold.len(), Self::BATCH_MAX as usize))
    }

    async fn tell(&self, alarm: &UnsentAlarm, now_s: i64) -> Result<HttpAnswer, SendError> {
        let what = if alarm.raised { "raised" } else { "cleared" };
        let at = if alarm.raised { Some(alarm.raised_at) } else { alarm.cleared_at };
        let body = json!({
            "type": format!("alarm.{what}"),
            "timestamp": at,
            "data": { "id": alarm.id, "kind": alarm.kind, "subject": alarm.subject, "details": alarm.details },
        });
        let (id, body) = (format!("alarm-{}-{what}", alarm.id), body.to_string().into_bytes());
        let headers = signed_headers(&self.secret, &id, now_s, &body);
        let key = Uuid::new_v5(&Uuid::NAMESPACE_OID, id.as_bytes());
        let sending = async {
            self.poster.send(self.poster.prepare(&self.url, key, &headers, body).await?, Self::PATIENCE).await
        };
        tokio::time::timeout(Self::PATIENCE * 2, sending).await.unwrap_or(Err(SendError::TimeOut))
    }
}
