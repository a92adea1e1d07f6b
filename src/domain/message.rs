//! Outbox rows and the messages that travel through the broker. The version is in a message's type: a consumer
//! refuses another version.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};
use utoipa::ToSchema;
use uuid::Uuid;

use super::ids::{GroupId, Invalid, OrderId, SaleId, uuid_from};
use super::payment::PaymentId;

/// Orders in one message at most.
pub const ORDERS_A_MESSAGE: usize = 250;
/// What each order adds to the body of a message of many: a UUID, its quotes and a comma.
pub const ORDER_BYTES: usize = 39;

/// What an outbox row asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum OutboxKind {
    OrderPlaced,
    OrderExpire,
    PaymentRequested,
    HoldRelease,
    WaveRelease,
    GroupPlaced,
    GroupExpire,
    GroupRelease,
}

impl OutboxKind {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The id of the message about this order, payment or group: the same however often the message is sent.
    pub fn message_id(self, about: impl Into<Uuid>) -> Uuid {
        let mut hasher = blake3::Hasher::new_derive_key("seckill 2026 message id");
        hasher.update(self.as_str().as_bytes()).update(&[0]).update(about.into().as_bytes());
        uuid_from(&hasher)
    }

    /// The id of a message about many orders, or many groups: the same for the same ones in the same order.
    pub fn message_id_of_many(self, about: &[impl Into<Uuid> + Copy]) -> Uuid {
        let mut hasher = blake3::Hasher::new_derive_key("seckill 2026 id of a message about many orders");
        hasher.update(self.as_str().as_bytes()).update(&[0]);
        for one in about {
            hasher.update((*one).into().as_bytes());
        }
        uuid_from(&hasher)
    }
}

/// What can be parked: a row of the outbox, by its kind, or an event of the order webhook.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ParkedKind {
    OrderPlaced,
    OrderExpire,
    PaymentRequested,
    HoldRelease,
    WaveRelease,
    GroupPlaced,
    GroupExpire,
    GroupRelease,
    OrderEvent,
}

impl ParkedKind {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    pub fn parse(text: &str) -> Result<Self, Invalid> {
        text.parse().map_err(|_| Invalid::new("kind", "must be a kind of message, such as order_placed"))
    }
}

/// A purchase is to become an order. Everything else is in its purchase row.
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

/// Purchases are to become orders. It has a queue of its own, because a worker of an older version cannot read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrdersPlacedV1 {
    pub version: Version<1>,
    #[serde(deserialize_with = "bounded")]
    pub orders: Vec<OrderId>,
}

/// Reads the orders or groups of a message, and refuses more than `ORDERS_A_MESSAGE`.
fn bounded<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let about = Vec::<T>::deserialize(deserializer)?;
    match about.len() {
        0..=ORDERS_A_MESSAGE => Ok(about),
        _ => Err(Error::custom("too many orders or groups")),
    }
}

/// The purchases of these group rows are to become orders. The message has a queue of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupsPlacedV1 {
    pub version: Version<1>,
    /// Together they have about as many purchases as `ORDERS_A_MESSAGE`, or it is a single group.
    #[serde(deserialize_with = "bounded")]
    pub groups: Vec<GroupId>,
}

/// The time to pay of the orders of these groups is up, or nearly. The message has a queue of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupsExpireV1 {
    pub version: Version<1>,
    #[serde(deserialize_with = "bounded")]
    pub groups: Vec<GroupId>,
}

/// The time to pay of these orders is up, or nearly. Their deadlines are in their rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrdersExpireV1 {
    pub version: Version<1>,
    #[serde(deserialize_with = "bounded")]
    pub orders: Vec<OrderId>,
}

/// A payment is to be sent to its channel. Everything else is in its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaymentRequestedV1 {
    pub version: Version<1>,
    pub payment_id: PaymentId,
}

/// A payload's version: written as its number. Any other number is an error when it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Version<const N: u8>;

impl<const N: u8> Serialize for Version<N> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(N)
    }
}

impl<'de, const N: u8> Deserialize<'de> for Version<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u8::deserialize(deserializer)? {
            n if n == N => Ok(Self),
            n => Err(Error::custom(format_args!("version {n}, but only version {N} is understood"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_message_id_is_stable_and_differs_by_kind() {
        let ids = || OutboxKind::VARIANTS.iter().map(|kind| kind.message_id(OrderId(Uuid::from_u128(7))));
        assert!(ids().eq(ids()));
        assert_eq!(ids().collect::<HashSet<_>>().len(), OutboxKind::VARIANTS.len());
    }

    #[test]
    fn the_id_of_a_message_of_many_depends_on_its_kind_and_its_orders() {
        let orders = |ids: &[u128]| ids.iter().map(|id| OrderId(Uuid::from_u128(*id))).collect::<Vec<_>>();
        let id = |ids: &[u128]| OutboxKind::OrderPlaced.message_id_of_many(&orders(ids));
        assert_eq!(id(&[1, 2]), id(&[1, 2]));
        let one = orders(&[1]);
        let others = [
            id(&[2, 1]),
            id(&[1]),
            id(&[]),
            OutboxKind::OrderPlaced.message_id(one[0]),
            OutboxKind::OrderExpire.message_id_of_many(&orders(&[1, 2])),
        ];
        assert_eq!(others.into_iter().chain([id(&[1, 2])]).collect::<HashSet<_>>().len(), 6);
    }

    #[test]
    fn an_order_adds_so_many_bytes_to_a_message() {
        let bytes = |n: usize| {
            let message = OrdersPlacedV1 { version: Version, orders: vec![OrderId(Uuid::nil()); n] };
            serde_json::to_vec(&message).unwrap().len()
        };
        assert_eq!(bytes(9) - bytes(4), 5 * ORDER_BYTES);
    }

    #[test]
    fn a_message_of_too_many_orders_is_not_read() {
        let read = |n: usize| {
            let message = OrdersPlacedV1 { version: Version, orders: vec![OrderId(Uuid::nil()); n] };
            serde_json::from_slice::<OrdersPlacedV1>(&serde_json::to_vec(&message).unwrap()).is_ok()
        };
        assert!(read(ORDERS_A_MESSAGE) && !read(ORDERS_A_MESSAGE + 1));
    }

    #[test]
    fn every_kind_of_the_outbox_can_be_parked() {
        let kinds = OutboxKind::VARIANTS.iter().map(|kind| kind.as_str()).chain(["order_event"]);
        assert!(ParkedKind::VARIANTS.iter().map(|kind| kind.as_str()).eq(kinds));
        assert_eq!(ParkedKind::parse("hold_release"), Ok(ParkedKind::HoldRelease));
        assert!(ParkedKind::parse("Hold").is_err());
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
