//! Payments (money in) and refunds (money out): the requests for them, and the documents that show them.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Money in or money out. Calls about arrivals name payments `pay`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TransferKind {
    #[serde(alias = "pay")]
    Payment,
    Refund,
}

impl TransferKind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Payment => "payment",
            Self::Refund => "refund",
        }
    }

    const fn prefix(self) -> &'static str {
        match self {
            Self::Payment => "pay",
            Self::Refund => "ref",
        }
    }
}

/// The order that a payment pays for, or the payment that a refund gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Cause {
    Payment { order_id: Uuid },
    Refund { payment_key: Uuid },
}

/// A request for a payment or refund. All requests with one key must be the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TransferRequest {
    #[serde(flatten)]
    pub cause: Cause,
    pub amount_cents: i64,
    pub currency: String,
}

impl TransferRequest {
    pub(crate) const fn kind(&self) -> TransferKind {
        match self.cause {
            Cause::Payment { .. } => TransferKind::Payment,
            Cause::Refund { .. } => TransferKind::Refund,
        }
    }

    /// Reads the request from the body of a call.
    pub(crate) fn parse(kind: TransferKind, body: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Body {
            order_id: Option<Uuid>,
            payment_key: Option<Uuid>,
            amount_cents: i64,
            currency: String,
        }
        let Body { order_id, payment_key, amount_cents, currency } =
            serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let (cause, min_cents) = match (kind, order_id, payment_key) {
            (TransferKind::Payment, Some(order_id), None) => (Cause::Payment { order_id }, 0),
            (TransferKind::Refund, None, Some(payment_key)) => (Cause::Refund { payment_key }, 1),
            (TransferKind::Payment, ..) => return Err("a payment has an order_id and no payment_key".to_owned()),
            (TransferKind::Refund, ..) => return Err("a refund has a payment_key and no order_id".to_owned()),
        };
        if amount_cents < min_cents {
            return Err(format!("amount_cents must be at least {min_cents}"));
        }
        if currency.len() != 3 || !currency.bytes().all(|letter| letter.is_ascii_uppercase()) {
            return Err("currency must be three capital letters, such as CNY".to_owned());
        }
        Ok(Self { cause, amount_cents, currency })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Pending,
    Succeeded,
    Failed,
}

impl Status {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}

/// A payment or refund, as answers and callbacks show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Document {
    pub key: Uuid,
    pub id: String,
    pub status: Status,
    /// Why it was declined, as a code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(flatten)]
    pub request: TransferRequest,
}

impl Document {
    pub(crate) fn new(key: Uuid, n: u64, status: Status, request: TransferRequest) -> Self {
        Self { key, id: format!("{}_{n}", request.kind().prefix()), status, reason: None, request }
    }
}
