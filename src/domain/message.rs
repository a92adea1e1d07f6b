//! What travels through the broker. The version is in the type: a consumer that meets another one says so.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::ids::{OrderId, SaleId, uuid_from};
use super::payment::PaymentId;

/// What an outbox row asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutboxKind {
    OrderPlaced,
    OrderExpire,
    HoldRelease,
    WaveRelease,
    PaymentRequested,
}

impl OutboxKind {
    pub const ALL: [Self; 5] =
        [Self::OrderPlaced, Self::OrderExpire, Self::HoldRelease, Self::WaveRelease, Self::PaymentRequested];

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.as_str() == text)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OrderPlaced => "order_placed",
            Self::OrderExpire => "order_expire",
            Self::HoldRelease => "hold_release",
            Self::WaveRelease => "wave_release",
            Self::PaymentRequested => "payment_requested",
        }
    }

    /// The id of the message about this order: the same however often it is sent.
    pub fn message_id(self, order: OrderId) -> Uuid {
        let mut hasher = blake3::Hasher::new_derive_key("seckill 2026 message id");
        hasher.update(self.as_str().as_bytes()).update(&[0]).update(order.0.as_bytes());
        uuid_from(&hasher)
    }
}

/// A winner's claim waits to become an order. Everything else is in its purchase row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderPlacedV1 {
    pub version: Version<1>,
    pub order_id: OrderId,
    pub sale_id: SaleId,
}

/// An order's time to pay is up at `due_at_ms`, by PostgreSQL's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderExpireV1 {
    pub version: Version<1>,
    pub order_id: OrderId,
    pub due_at_ms: i64,
}

/// A payment waits for a slot of its channel. Everything else is in its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaymentRequestedV1 {
    pub version: Version<1>,
    pub payment_id: PaymentId,
}

/// A payload's version: written as its number, and read as no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Version<const N: u8>;

impl<const N: u8> Serialize for Version<N> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(N)
    }
}

impl<'de, const N: u8> Deserialize<'de> for Version<N> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u8::deserialize(deserializer)? {
            n if n == N => Ok(Self),
            n => Err(serde::de::Error::custom(format_args!("version {n}, where {N} is understood"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_id_is_stable_and_one_a_kind() {
        let order = OrderId(Uuid::from_u128(7));
        let ids = OutboxKind::ALL.map(|kind| kind.message_id(order));
        assert_eq!(ids, OutboxKind::ALL.map(|kind| kind.message_id(order)));
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    }

    #[test]
    fn another_version_is_refused() {
        let message = OrderExpireV1 { version: Version, order_id: OrderId(Uuid::from_u128(7)), due_at_ms: 5 };
        let json = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<OrderExpireV1>(&json).unwrap(), message);
        let newer = json.replace("\"version\":1", "\"version\":2");
        assert!(serde_json::from_str::<OrderExpireV1>(&newer).is_err());
    }
}
