//! The task of an outbox row, by its kind.

use uuid::Uuid;

use seckill_domain::ids::{GroupId, WaveId};
use seckill_domain::message::OutboxKind;
use seckill_domain::order::HoldRelease;
use seckill_domain::payment::PaymentId;

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
