//! The task of an outbox row, by its kind.

use uuid::Uuid;

use crate::domain::ids::{GroupId, OrderId, WaveId};
use crate::domain::message::OutboxKind;
use crate::domain::order::HoldRelease;
use crate::domain::payment::PaymentId;
use crate::ledger::LedgerError;

#[derive(Debug, Clone)]
pub enum BrokerMessage {
    GroupPlaced {
        group: GroupId,
        members: usize,
    },
    GroupExpire {
        group: GroupId,
        members: usize,
        /// The time until its orders' deadline, by PostgreSQL's clock.
        remaining_ms: i64,
    },
    PaymentRequested {
        payment: PaymentId,
        channel: String,
    },
}

impl BrokerMessage {
    /// The row's kind, and the id of its group or payment.
    pub fn key(&self) -> (OutboxKind, Uuid) {
        match self {
            Self::GroupPlaced { group, .. } => (OutboxKind::GroupPlaced, group.0),
            Self::GroupExpire { group, .. } => (OutboxKind::GroupExpire, group.0),
            Self::PaymentRequested { payment, .. } => (OutboxKind::PaymentRequested, payment.0),
        }
    }
}

/// Units to put on sale in Redis.
#[derive(Debug, Clone)]
pub enum UnitRelease {
    /// Holds that ended in the same transaction.
    Holds(Vec<HoldRelease>),
    Wave {
        wave: WaveId,
        units: i64,
    },
}

pub(super) struct ClaimedRow {
    pub(super) id: i64,
    pub(super) kind: String,
    pub(super) order_id: Uuid,
    pub(super) sale_id: i64,
    pub(super) shard: i16,
    pub(super) quantity: i32,
    pub(super) returns_units: Option<bool>,
    pub(super) attempts: i32,
    pub(super) remaining_ms: i64,
    pub(super) channel: Option<String>,
    /// The number of purchases of the row's group.
    pub(super) members: Option<i32>,
    /// The orders with released holds, and when each hold lapsed, if it did.
    pub(super) released: Option<Vec<Uuid>>,
    pub(super) lapsed: Option<Vec<Option<i64>>>,
    pub(super) trace: Option<String>,
}

impl ClaimedRow {
    pub(super) fn message(&self) -> Result<BrokerMessage, LedgerError> {
        let (group, members) = (GroupId(self.order_id), self.group_size());
        match self.kind.parse() {
            Ok(OutboxKind::GroupPlaced) => Ok(BrokerMessage::GroupPlaced { group, members }),
            Ok(OutboxKind::GroupExpire) => {
                Ok(BrokerMessage::GroupExpire { group, members, remaining_ms: self.remaining_ms })
            }
            // Without its payment, a row has no channel. It waits like a row of an unknown channel.
            Ok(OutboxKind::PaymentRequested) => Ok(BrokerMessage::PaymentRequested {
                payment: PaymentId(self.order_id),
                channel: self.channel.clone().unwrap_or_default(),
            }),
            Ok(OutboxKind::HoldRelease | OutboxKind::WaveRelease) | Err(_) => {
                Err(LedgerError::Unreadable("outbox.kind"))
            }
        }
    }

    pub(super) fn release(&self) -> Result<UnitRelease, LedgerError> {
        if self.kind == OutboxKind::WaveRelease.as_str() {
            return Ok(UnitRelease::Wave { wave: WaveId(self.order_id), units: self.quantity.into() });
        }
        let returns_units = self.returns_units.ok_or(LedgerError::Unreadable("outbox.returns_units"))?;
        let orders = self.released.iter().flatten().map(|order| OrderId(*order));
        let lapsed = self.lapsed.iter().flatten().copied().chain(std::iter::repeat(None));
        let hold = |(order, lapsed_at_ms)| HoldRelease { order, returns_units, lapsed_at_ms };
        Ok(UnitRelease::Holds(orders.zip(lapsed).map(hold).collect()))
    }

    /// A row without its group is published too, so that it does not stop the others.
    fn group_size(&self) -> usize {
        self.members.and_then(|members| usize::try_from(members).ok()).unwrap_or(1)
    }
}
