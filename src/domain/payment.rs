//! Money: payments, refunds, and what a channel says of them.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::ids::{Invalid, OrderId};

/// A payment; also the Idempotency-Key that its channel sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct PaymentId(pub Uuid);

impl fmt::Display for PaymentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A refund.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct RefundId(pub Uuid);

impl fmt::Display for RefundId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A payment's states; the schema holds its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PaymentStatus {
    /// Durable, and on its way to the channel.
    Created,
    /// It may have reached the channel.
    Sending,
    /// The channel has it.
    Waiting,
    Succeeded,
    Failed,
    /// Its order ended before anything was sent.
    Abandoned,
}

impl PaymentStatus {
    const ALL: [Self; 6] =
        [Self::Created, Self::Sending, Self::Waiting, Self::Succeeded, Self::Failed, Self::Abandoned];

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.as_str() == text)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Sending => "sending",
            Self::Waiting => "waiting",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Abandoned => "abandoned",
        }
    }
}

/// A refund's states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RefundStatus {
    /// Durable; it leaves at the channel's pace.
    Requested,
    Succeeded,
    /// The channel will not have it: people have to look.
    Failed,
}

impl RefundStatus {
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Requested, Self::Succeeded, Self::Failed].into_iter().find(|s| s.as_str() == text)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}

/// Why money goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefundCause {
    /// Somebody asked for it.
    Asked,
    /// The order had ended when the money came.
    OrderEnded,
    /// Another payment had paid the order.
    OrderAlreadyPaid,
}

impl RefundCause {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::OrderEnded => "order-ended",
            Self::OrderAlreadyPaid => "order-already-paid",
        }
    }
}

/// Why somebody wants his money back, in his own words: up to 500 characters on one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefundReason(Box<str>);

impl RefundReason {
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if text.chars().count() <= 500 && !text.chars().any(char::is_control) {
            Ok(Self(text.into()))
        } else {
            Err(Invalid::new("reason", "must be up to 500 characters on one line"))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a payment or refund is about, as both sides know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    Payment { key: Uuid, order: OrderId },
    Refund { key: Uuid, payment: Uuid },
}

impl About {
    pub const fn key(&self) -> Uuid {
        match self {
            Self::Payment { key, .. } | Self::Refund { key, .. } => *key,
        }
    }

    pub const fn is_refund(&self) -> bool {
        matches!(self, Self::Refund { .. })
    }
}

/// How far a channel is with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Progress {
    Pending,
    Succeeded,
    Failed,
}

/// What a channel says: by a callback, or because it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelReport {
    pub about: About,
    pub progress: Progress,
    pub amount_cents: i64,
    pub currency: String,
    /// The channel's own number for it.
    pub reference: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_knows_the_same_names() {
        let schema = include_str!("../../migrations/0011_payments.sql");
        let payments: Vec<_> = PaymentStatus::ALL.iter().map(|s| format!("'{}'", s.as_str())).collect();
        assert!(schema.contains(&format!("CHECK (status IN ({}))", payments.join(", "))));
        assert!(schema.contains("CHECK (status IN ('requested', 'succeeded', 'failed'))"));
        assert_eq!(RefundStatus::parse("failed"), Some(RefundStatus::Failed));
        for cause in [RefundCause::Asked, RefundCause::OrderEnded, RefundCause::OrderAlreadyPaid] {
            assert!(schema.contains(&format!("'{}'", cause.as_str())));
        }
    }

    #[test]
    fn a_reason_is_one_line() {
        assert!(RefundReason::parse("it is too small").is_ok());
        assert!(RefundReason::parse("two\nlines").is_err());
        assert!(RefundReason::parse(&"x".repeat(501)).is_err());
    }
}
