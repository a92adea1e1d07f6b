//! Webhooks: the messages that the service posts about orders and alarms, and the check that they are genuine.

use std::time::{SystemTime, UNIX_EPOCH};

use seckill_webhook::{Secret, verify};
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use crate::orders::OrderStatus;

pub use seckill_webhook::{InvalidSecret, SignatureError};

/// Checks messages against the secrets that you share with the service.
#[derive(Debug, Clone)]
pub struct WebhookVerifier {
    secrets: Vec<Secret>,
}

/// A genuine message.
#[derive(Debug, Clone, PartialEq)]
pub struct WebhookMessage {
    /// The same each time the message is sent. Answer a message that you have processed before with 2xx, and skip it.
    pub id: String,
    /// The kind of event: `order.paid`, `order.cancelled`… Answer an unknown kind with 2xx.
    pub kind: String,
    /// The time of the event (RFC 3339), which may be long before the message was sent.
    pub timestamp: Option<String>,
    /// The changed order, if the kind begins with `order.`.
    pub order: Option<OrderChange>,
    pub data: Value,
}

/// An order, as it was after a change.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct OrderChange {
    pub order_id: Uuid,
    pub sale_id: i64,
    pub user_id: String,
    pub quantity: u32,
    pub amount_cents: i64,
    /// ISO 4217.
    pub currency: String,
    pub status: OrderStatus,
    /// Why it was cancelled (`expired`, `by-buyer`) or rejected (`out-of-stock`, `over-limit`).
    pub reason: Option<String>,
}

/// Why a message is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WebhookError {
    /// The signature is wrong, or the message's time is outside the tolerance: it may be a replay.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The message is genuine, but not a message of this API.
    #[error("the message cannot be read: {0}")]
    Unreadable(String),
}

impl WebhookError {
    /// The HTTP status to answer with: 401 for a signature that is not accepted, 422 for a message that cannot be read.
    pub fn status(&self) -> u16 {
        match self {
            Self::Signature(_) => 401,
            Self::Unreadable(_) => 422,
        }
    }
}

#[derive(Deserialize)]
struct Document {
    #[serde(rename = "type")]
    kind: String,
    timestamp: Option<String>,
    #[serde(default)]
    data: Value,
}

impl WebhookVerifier {
    /// A verifier with these secrets, separated by commas: as in `SECKILL_SHOP__WEBHOOK_SECRETS`. During a change of the secret, give both,
    /// the new one and the old one.
    ///
    /// # Errors
    /// A secret is not `whsec_` and the base64 of 24 to 64 bytes; or there is none.
    pub fn new(secrets: &str) -> Result<Self, InvalidSecret> {
        let secrets = secrets.split(',').map(|secret| Secret::parse(secret.trim()));
        Ok(Self { secrets: secrets.collect::<Result<_, _>>()? })
    }

    /// Checks a message, and reads it. `header` returns the value of a header by its name in lower case; `body` is the body as it
    /// arrived, byte by byte; `now` is [`SystemTime::now`].
    ///
    /// # Errors
    /// [`WebhookError::Signature`]: a header is missing, the signature is of none of the secrets, or the message is older or
    /// newer than 300 s. [`WebhookError::Unreadable`]: the body is not a message of this API.
    pub fn verify<'h>(
        &self,
        header: impl Fn(&str) -> Option<&'h str>,
        body: &[u8],
        now: SystemTime,
    ) -> Result<WebhookMessage, WebhookError> {
        let [id, timestamp, signatures] =
            ["webhook-id", "webhook-timestamp", "webhook-signature"].map(|name| header(name).unwrap_or_default());
        let now_s = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().try_into().unwrap_or(i64::MAX));
        verify(&self.secrets, id, timestamp, signatures, body, now_s)?;
        let unreadable = |error: serde_json::Error| WebhookError::Unreadable(error.to_string());
        let Document { kind, timestamp, data } = serde_json::from_slice(body).map_err(unreadable)?;
        let is_order = kind.starts_with("order.");
        let order = is_order.then(|| OrderChange::deserialize(&data)).transpose().map_err(unreadable)?;
        Ok(WebhookMessage { id: id.to_owned(), kind, timestamp, order, data })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use seckill_webhook::signed_headers;

    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OLD: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    const AT_S: u64 = 1_795_254_759;
    const PAID: &[u8] = br#"{"type":"order.paid","timestamp":"2026-11-21T09:52:39Z","data":{"order_id":
        "0198c0de-0000-7000-8000-00000000002a","sale_id":1,"user_id":"alice","quantity":1,"amount_cents":100,
        "currency":"CNY","status":"paid","new":true}}"#;

    /// The result for a message that is signed by `secret` and checked `late_s` seconds later.
    fn check(secrets: &str, secret: &str, body: &[u8], late_s: u64) -> Result<WebhookMessage, WebhookError> {
        let signed = signed_headers(&[Secret::parse(secret).unwrap()], "msg_1", AT_S.cast_signed(), body);
        let header = |name: &str| signed.iter().find(|(other, _)| *other == name).map(|(_, value)| value.as_str());
        let now = UNIX_EPOCH + Duration::from_secs(AT_S + late_s);
        WebhookVerifier::new(secrets).unwrap().verify(header, body, now)
    }

    #[test]
    fn a_message_of_the_service_is_read() {
        let message = check(SECRET, SECRET, PAID, 0).unwrap();
        assert_eq!((message.id.as_str(), message.kind.as_str()), ("msg_1", "order.paid"));
        assert_eq!(message.order.unwrap().status, OrderStatus::Paid);
        let alarm = check(SECRET, SECRET, br#"{"type":"alarm.raised","data":{"kind":"parked"}}"#, 0).unwrap();
        assert_eq!((alarm.order, &alarm.data["kind"]), (None, &Value::from("parked")));
    }

    #[test]
    fn messages_of_others_are_refused() {
        assert!(check(&format!("{SECRET}, {OLD}"), OLD, PAID, 0).is_ok(), "while a secret is changed, both are taken");
        assert_eq!(check(SECRET, OLD, PAID, 0), Err(SignatureError::NotOurs.into()));
        assert_eq!(check(SECRET, SECRET, PAID, 301), Err(SignatureError::NotNow.into()));
        let unsigned = WebhookVerifier::new(SECRET).unwrap().verify(|_| None, PAID, UNIX_EPOCH);
        assert_eq!(unsigned, Err(SignatureError::Malformed.into()));
        let other = check(SECRET, SECRET, br#"{"type":"order.paid","data":{}}"#, 0).unwrap_err();
        assert_eq!(other.status(), 422);
        assert!(WebhookVerifier::new("").is_err() && WebhookVerifier::new("whsec_short").is_err());
    }
}
