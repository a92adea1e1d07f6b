//! What the sandbox's interface says (docs/channel.md), from our side: requests and callbacks as Standard Webhooks signs
//! them, an Idempotency-Key on each request, and questions by that key.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{BadCallback, Charge, Signed, StatusReply};
use crate::domain::ids::OrderId;
use crate::domain::payment::{About, ChannelReport, Progress};
use seckill_webhook::{HttpAnswer, HttpSender, PreparedRequest, SendError};
use seckill_webhook::{Secret, signed_headers, verify};

/// Entries of the channel's books that are asked for at once.
const PAGE: usize = 1000;

pub struct Sandbox {
    url: String,
    /// The first signs; a callback may be by any.
    secrets: Vec<Secret>,
    patience: Duration,
    poster: HttpSender,
}

/// A payment or refund as the channel writes it.
#[derive(Deserialize)]
struct Document {
    key: Uuid,
    id: Option<String>,
    status: Progress,
    amount_cents: i64,
    currency: String,
    order_id: Option<Uuid>,
    payment_key: Option<Uuid>,
}

#[derive(Deserialize)]
struct Callback {
    #[serde(rename = "type")]
    kind: String,
    data: Document,
}

#[derive(Deserialize)]
struct Page {
    entries: Vec<Document>,
    next: Option<i64>,
}

impl Document {
    fn told(self) -> Option<ChannelReport> {
        let about = match (self.order_id, self.payment_key) {
            (_, Some(payment)) => About::Refund { key: self.key, payment },
            (Some(order), None) => About::Payment { key: self.key, order: OrderId(order) },
            (None, None) => return None,
        };
        let (amount_cents, currency) = (self.amount_cents, self.currency);
        Some(ChannelReport {
            about,
            progress: self.status,
            amount_cents,
            currency,
            reference: self.id.unwrap_or_default(),
        })
    }
}

impl Sandbox {
    pub fn new(url: &str, secrets: Vec<Secret>, patience: Duration) -> Self {
        Self { url: url.trim_end_matches('/').to_owned(), secrets, patience, poster: HttpSender::default() }
    }

    pub async fn prepare(&self, charge: &Charge<'_>, now_s: i64) -> Result<PreparedRequest, SendError> {
        let Charge { about, amount_cents, currency } = charge;
        let (path, body) = match about {
            About::Payment { order, .. } => {
                ("payments", json!({ "order_id": order, "amount_cents": amount_cents, "currency": currency }))
            }
            About::Refund { payment, .. } => {
                ("refunds", json!({ "payment_key": payment, "amount_cents": amount_cents, "currency": currency }))
            }
        };
        let body = body.to_string().into_bytes();
        let headers = self.secrets.first().map(|secret| signed_headers(secret, &about.key().to_string(), now_s, &body));
        let target = format!("{}/v1/{path}", self.url);
        self.poster.prepare(&target, about.key(), &headers.unwrap_or_default(), body).await
    }

    pub async fn send(&self, ready: PreparedRequest) -> Result<HttpAnswer, SendError> {
        self.poster.send(ready, self.patience).await
    }

    pub fn keep(&self, ready: PreparedRequest) {
        self.poster.keep(ready);
    }

    pub async fn ask(&self, about: About) -> Result<StatusReply, SendError> {
        let what = if about.is_refund() { "refunds" } else { "payments" };
        let target = format!("{}/v1/{what}/{}", self.url, about.key());
        let answer = self.poster.get(&target, self.patience).await?;
        let told = || serde_json::from_slice::<Document>(&answer.body).ok().and_then(Document::told);
        Ok(match answer.status {
            200 => told().map_or_else(|| StatusReply::Unclear(answer.text()), StatusReply::ChannelReport),
            404 if answer.text().contains("unknown") => StatusReply::Unknown,
            status => StatusReply::Unclear(format!("{status} {}", answer.text())),
        })
    }

    pub fn read_callback(&self, signed: Signed<'_>, body: &[u8], now_s: i64) -> Result<ChannelReport, BadCallback> {
        verify(&self.secrets, signed.id, signed.timestamp, signed.signature, body, now_s)?;
        let unreadable = |error: &dyn std::fmt::Display| BadCallback::Unreadable(error.to_string());
        let callback: Callback = serde_json::from_slice(body).map_err(|error| unreadable(&error))?;
        let (what, progress) = callback.kind.split_once('.').unwrap_or_default();
        let told = callback.data.told().ok_or_else(|| unreadable(&"it names no order and no payment"))?;
        let meant = match progress {
            "succeeded" => Progress::Succeeded,
            "failed" => Progress::Failed,
            _ => Progress::Pending,
        };
        if (what == "refund") != told.about.is_refund() || meant != told.progress {
            return Err(unreadable(&"its type is not what it is about"));
        }
        Ok(told)
    }

    pub async fn movements(&self, after: i64) -> Result<(Vec<ChannelReport>, Option<i64>), SendError> {
        let target = format!("{}/v1/ledger?after={after}&limit={PAGE}", self.url);
        let answer = self.poster.get(&target, self.patience).await?;
        let page: Page = match answer.status {
            200 => serde_json::from_slice(&answer.body).map_err(|error| SendError::Lost(error.to_string()))?,
            status => return Err(SendError::Lost(format!("{status} {}", answer.text()))),
        };
        Ok((page.entries.into_iter().filter_map(Document::told).collect(), page.next))
    }

    pub fn refunds_at(&self) -> String {
        format!("{}/v1/refunds", self.url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000;

    fn sandbox() -> Sandbox {
        let secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"];
        let secrets = secrets.map(|secret| Secret::parse(secret).unwrap());
        Sandbox::new("http://127.0.0.1:1/", secrets.into(), Duration::from_secs(1))
    }

    fn read(kind: &str, data: &serde_json::Value) -> Result<ChannelReport, BadCallback> {
        let sandbox = sandbox();
        let body = json!({ "type": kind, "timestamp": "2026-01-01T00:00:00Z", "data": data }).to_string();
        let signature = sandbox.secrets[1].sign("msg_1", NOW, body.as_bytes());
        let signed = Signed { id: "msg_1", timestamp: &NOW.to_string(), signature: &signature };
        sandbox.read_callback(signed, body.as_bytes(), NOW)
    }

    #[test]
    fn a_callback_by_either_live_key_is_read() {
        let (key, order) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let data = json!({ "key": key, "id": "pay_1", "status": "succeeded", "order_id": order,
                           "amount_cents": 5, "currency": "CNY" });
        let told = read("payment.succeeded", &data).unwrap();
        assert_eq!(told.about, About::Payment { key, order: OrderId(order) });
        assert_eq!((told.progress, told.amount_cents, told.currency.as_str()), (Progress::Succeeded, 5, "CNY"));
        assert!(matches!(read("payment.failed", &data), Err(BadCallback::Unreadable(_))), "type and status differ");
        assert!(matches!(read("refund.succeeded", &data), Err(BadCallback::Unreadable(_))), "no refund");
        assert!(matches!(read("payment.succeeded", &json!({})), Err(BadCallback::Unreadable(_))));
    }
}
