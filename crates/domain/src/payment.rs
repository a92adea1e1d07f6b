//! Payments, refunds, and a channel's reports about them.

use serde::{Deserialize, Serialize};
use strum::{EnumIter, EnumString, IntoStaticStr};
use utoipa::ToSchema;
use uuid::Uuid;

use super::ids::{Invalid, OrderId};
use super::text;

pub use super::ids::{PaymentId, RefundId, RefundKey};

/// In place of a channel's name: the payment of an order that costs nothing. No bank is asked.
pub const NO_CHANNEL: &str = "none";

/// A payment's states; the schema holds its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema, IntoStaticStr, EnumString, EnumIter)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum PaymentStatus {
    /// Durable, and waiting to be sent to the channel.
    Created,
    /// It may have reached the channel.
    Sending,
    /// The channel has it.
    Waiting,
    Succeeded,
    Failed,
    /// Its order ended, and the channel does not have it.
    Abandoned,
}

/// A refund's states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema, IntoStaticStr, EnumString, EnumIter)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RefundStatus {
    /// Durable; it leaves at the channel's rate.
    Requested,
    Succeeded,
    /// The channel has declined it: an operator has to decide.
    Failed,
}

/// Why money goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, EnumIter)]
#[strum(serialize_all = "kebab-case")]
pub enum RefundCause {
    /// The buyer or an operator asked for it.
    Asked,
    /// The order had ended when the money came.
    OrderEnded,
    /// Another payment had paid the order.
    OrderAlreadyPaid,
}

/// Why a refund was asked for, in the caller's words: up to 500 characters on one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefundReason(Box<str>);

impl RefundReason {
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        Ok(Self(text::line(text, "reason", 0..=500)?.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The subject of a message between a channel and this service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    Payment { key: PaymentId, order: OrderId },
    Refund { key: RefundKey, payment: PaymentId },
}

impl About {
    pub const fn key(&self) -> Uuid {
        match self {
            Self::Payment { key, .. } => key.0,
            Self::Refund { key, .. } => key.0,
        }
    }

    pub const fn is_refund(&self) -> bool {
        matches!(self, Self::Refund { .. })
    }
}

/// A channel's decision about a payment or refund.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Progress {
    Pending,
    Succeeded,
    Failed,
}

/// The state of a payment or refund at its channel, from a callback or from the answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelReport {
    pub about: About,
    pub progress: Progress,
    pub amount_cents: i64,
    pub currency: String,
    /// The channel's own number.
    pub reference: String,
    /// Why it was declined, in the channel's words.
    pub reason: Option<String>,
}

/// A channel's reason as a code for buyers, such as `insufficient-funds`. `failed`: the channel gave a text for engineers.
pub fn reason_code(reason: &str) -> &str {
    let is_code = reason.len() <= 64 && reason.starts_with(|first: char| first.is_ascii_lowercase());
    let fits = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
    if is_code && reason.bytes().all(fits) { reason } else { "failed" }
}

/// The effect of a channel's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportOutcome {
    /// An order is paid, or refunded, or a payment has failed.
    Applied,
    /// Money came for which no order waits: a refund was written.
    Refunding,
    /// It had been applied before.
    Known,
    /// Nothing follows from it yet.
    Pending,
    /// The report contradicts our books. Nothing was changed.
    Misfit(&'static str),
}

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator;

    use super::*;

    #[test]
    fn only_a_code_is_told_to_buyers() {
        for code in ["declined", "insufficient-funds", "3ds-failed", "a"] {
            let expected = if code.starts_with('3') { "failed" } else { code };
            assert_eq!(reason_code(code), expected);
        }
        for text in ["", "422: {\"code\":\"x\"}", "Insufficient funds", "Declined", &"a".repeat(65)] {
            assert_eq!(reason_code(text), "failed", "{text}");
        }
    }

    #[test]
    fn the_schema_has_the_same_names() {
        fn texts<T: IntoEnumIterator + Into<&'static str>>() -> String {
            let texts: Vec<String> = T::iter().map(|value| format!("'{}'", value.into())).collect();
            texts.join(", ")
        }
        let schema = include_str!("../../../migrations/0005_money.sql");
        assert!(schema.contains(&format!("CHECK (status IN ({}))", texts::<PaymentStatus>())));
        assert!(schema.contains(&format!("CHECK (status IN ({}))", texts::<RefundStatus>())));
        assert!(schema.contains(&format!("CHECK (cause IN ({}))", texts::<RefundCause>())));
        assert_eq!("failed".parse(), Ok(RefundStatus::Failed));
    }
}
