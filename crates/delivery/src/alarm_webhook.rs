//! Alarm webhooks: a signed message (Standard Webhooks) when an alarm is raised, and another when it is cleared.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use seckill_channel::deliver::outcome_of;
use seckill_domain::alarm::AlarmKind;
use seckill_domain::delivery::{DeliveryOutcome, Standing};
use seckill_domain::step::Step;
use seckill_postgres::flow::alarms::UnsentAlarm;
use seckill_postgres::{Ledger, LedgerError};
use seckill_webhook::{HttpSender, Secret, SignedRequest};

#[derive(Clone)]
pub struct AlarmWebhook {
    pub ledger: Ledger,
    pub url: String,
    pub secret: Secret,
    pub sender: Arc<HttpSender>,
}

impl AlarmWebhook {
    /// At twice `PATIENCE` each they are sent well within the half minute of a worker's claim.
    const BATCH_MAX: i64 = 10;
    const RECEIVER: &str = "alarms";
    /// For the connection, and again for the answer.
    const PATIENCE: Duration = Duration::from_secs(1);

    /// Sends undelivered messages. A failed one is sent again later, under the same id.
    pub async fn step(&self) -> Result<Step, LedgerError> {
        let standing = self.ledger.receivers.standing(Self::RECEIVER).await?;
        let is_well = standing == Standing::Well;
        let most = match standing {
            Standing::Well => Self::BATCH_MAX,
            Standing::ProbeDue => 1,
            Standing::Pauses(_) => return Ok(Step::Idle),
        };
        let unsent = self.ledger.alarms.unsent_alarms(most).await?;
        let now_s = self.ledger.now_ms().await? / 1000;
        for alarm in &unsent {
            if !is_well && !self.ledger.receivers.begin_probe(Self::RECEIVER, Self::PATIENCE * 4).await? {
                self.ledger.alarms.postpone_alarm(alarm.id).await?;
                return Ok(Step::Idle);
            }
            let sent = Instant::now();
            let outcome = outcome_of(&self.sender.post(self.request(alarm, now_s), Self::PATIENCE).await);
            self.ledger.receivers.note(Self::RECEIVER, sent, &outcome).await;
            match outcome {
                DeliveryOutcome::Done => self.ledger.alarms.mark_alarm_sent(alarm.id, alarm.raised).await?,
                DeliveryOutcome::Failed(failure) if is_well && failure.may_have_taken_effect => {}
                DeliveryOutcome::Failed(_) => self.ledger.alarms.postpone_alarm(alarm.id).await?,
                DeliveryOutcome::Refused(why) => {
                    tracing::warn!(alarm = alarm.id, why, "alarm not delivered; it is sent again later");
                }
            }
        }
        Ok(Step::after(unsent.len(), most as usize))
    }

    fn request(&self, alarm: &UnsentAlarm, now_s: i64) -> SignedRequest {
        let event = if alarm.raised { "raised" } else { "cleared" };
        let at = if alarm.raised { Some(alarm.raised_at) } else { alarm.cleared_at };
        let body = json!({
            "type": format!("alarm.{event}"),
            "timestamp": at,
            "data": {
                "id": alarm.id,
                "kind": alarm.kind,
                "subject": alarm.subject,
                "details": alarm.details,
                "runbook": AlarmKind::runbook_of(&alarm.kind),
            },
        });
        let (id, secrets) = (format!("alarm-{}-{event}", alarm.id), std::slice::from_ref(&self.secret));
        SignedRequest::message(&self.url, &id, secrets, now_s, body.to_string().into_bytes())
    }
}
