//! Outbox rows and the broker's messages. A message's type has its version: a consumer refuses another one.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};
use utoipa::ToSchema;
use uuid::Uuid;

use super::ids::{GroupId, Invalid, uuid_from};
use super::payment::PaymentId;

/// A message is about one group, or about several with at most this many orders together.
pub const ORDERS_A_MESSAGE: usize = 250;

/// The work of an outbox row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum OutboxKind {
    /// The purchases of a group become orders.
    GroupPlaced,
    /// The unpaid orders of a group, or one order under its own id, are cancelled at their deadline.
    GroupExpire,
    PaymentRequested,
    /// Holds of ended orders end in Redis.
    HoldRelease,
    WaveRelease,
}

impl OutboxKind {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The id of the message about this group, order or payment: the same each time the message is sent.
    pub fn message_id(self, about: impl Into<Uuid>) -> Uuid {
        self.id_of("seckill 2026 message id", [about.into()])
    }

    /// The id of a message about several groups: the same for the same groups in the same order.
    pub fn message_id_of_many(self, about: &[impl Into<Uuid> + Copy]) -> Uuid {
        self.id_of("seckill 2026 id of a message about many orders", about.iter().map(|one| (*one).into()))
    }

    fn id_of(self, context: &str, about: impl IntoIterator<Item = Uuid>) -> Uuid {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(self.as_str().as_bytes()).update(&[0]);
        for one in about {
            hasher.update(one.as_bytes());
        }
        uuid_from(&hasher)
    }
}

/// The kinds of parked work: the outbox's, and events of the order webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ParkedKind {
    GroupPlaced,
    GroupExpire,
    PaymentRequested,
    HoldRelease,
    WaveRelease,
    OrderEvent,
}

impl ParkedKind {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    pub fn parse(text: &str) -> Result<Self, Invalid> {
        text.parse().map_err(|_| Invalid::new("kind", "must be a kind of message, such as group_placed"))
    }
}

/// The purchases of these groups become orders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupsPlacedV1 {
    pub version: Version<1>,
    #[serde(deserialize_with = "bounded")]
    pub groups: Vec<GroupId>,
}

/// The time to pay the orders of these groups is nearly over. Their deadlines are in their rows. A single order has its own id, as a group of
/// one has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupsExpireV1 {
    pub version: Version<1>,
    #[serde(deserialize_with = "bounded")]
    pub groups: Vec<GroupId>,
}

fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<GroupId>, D::Error> {
    let groups = Vec::deserialize(deserializer)?;
    match groups.len() {
        0..=ORDERS_A_MESSAGE => Ok(groups),
        _ => Err(Error::custom("too many groups")),
    }
}

/// A payment to send to its channel. Everything else is in its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaymentRequestedV1 {
    pub version: Version<1>,
    pub payment_id: PaymentId,
}

/// A payload's version, written as its number. To read any other number is an error.
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

    fn groups(ids: &[u128]) -> Vec<GroupId> {
        ids.iter().map(|id| GroupId(Uuid::from_u128(*id))).collect()
    }

    #[test]
    fn a_message_id_is_stable_and_depends_on_its_kind_and_its_groups() {
        let one = |kind: OutboxKind| kind.message_id(groups(&[1])[0]);
        let many = |ids: &[u128]| OutboxKind::GroupPlaced.message_id_of_many(&groups(ids));
        let ids =
            || OutboxKind::VARIANTS.iter().map(|kind| one(*kind)).chain([&[1, 2][..], &[2, 1], &[1], &[]].map(many));
        assert!(ids().eq(ids()));
        assert_eq!(ids().collect::<HashSet<_>>().len(), OutboxKind::VARIANTS.len() + 4);
    }

    #[test]
    fn a_message_of_too_many_groups_is_not_read() {
        let read = |n: usize| {
            let message = GroupsPlacedV1 { version: Version, groups: vec![GroupId(Uuid::nil()); n] };
            serde_json::from_slice::<GroupsPlacedV1>(&serde_json::to_vec(&message).unwrap()).is_ok()
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
        let message = GroupsExpireV1 { version: Version, groups: groups(&[7]) };
        let json = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<GroupsExpireV1>(&json).unwrap(), message);
        let newer = json.replace("\"version\":1", "\"version\":2");
        assert!(serde_json::from_str::<GroupsExpireV1>(&newer).is_err());
    }
}
