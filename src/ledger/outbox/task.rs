//! What a row of the outbox asks for, by its kind.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::domain::ids::{GroupId, OrderId, WaveId};
use crate::domain::message::OutboxKind;
use crate::domain::order::HoldRelease;
use crate::domain::payment::PaymentId;
use crate::ledger::LedgerError;

/// A message that is to be published.
#[derive(Debug, Clone)]
pub enum BrokerMessage {
    OrderPlaced {
        order: OrderId,
    },
    OrderExpire {
        order: OrderId,
        due_at_ms: i64,
        /// The time until `due_at_ms`, by PostgreSQL's clock.
        remaining_ms: i64,
    },
    PaymentRequested {
        payment: PaymentId,
        channel: String,
    },
    GroupPlaced {
        group: GroupId,
        /// How many purchases it has.
        members: usize,
    },
    GroupExpire {
        group: GroupId,
        members: usize,
        /// The time until the deadline of its orders, by PostgreSQL's clock.
        remaining_ms: i64,
    },
}

impl BrokerMessage {
    /// The row's kind, and the id of the order, payment or group that the message is about.
    pub fn key(&self) -> (OutboxKind, Uuid) {
        match self {
            Self::OrderPlaced { order } => (OutboxKind::OrderPlaced, order.0),
            Self::OrderExpire { order, .. } => (OutboxKind::OrderExpire, order.0),
            Self::PaymentRequested { payment, .. } => (OutboxKind::PaymentRequested, payment.0),
            Self::GroupPlaced { group, .. } => (OutboxKind::GroupPlaced, group.0),
            Self::GroupExpire { group, .. } => (OutboxKind::GroupExpire, group.0),
        }
    }
}

/// Units that are to go on sale in Redis.
#[derive(Debug, Clone)]
pub enum UnitRelease {
    Hold(HoldRelease),
    /// Holds that ended together.
    Holds(Vec<HoldRelease>),
    Wave {
        wave: WaveId,
        units: i64,
    },
}

/// A row as the claiming statements return it.
pub(super) struct ClaimedRow {
    pub(super) id: i64,
    pub(super) kind: String,
    pub(super) order_id: Uuid,
    pub(super) sale_id: i64,
    pub(super) shard: i16,
    pub(super) quantity: i32,
    pub(super) due_at: Option<DateTime<Utc>>,
    pub(super) returns_units: Option<bool>,
    pub(super) attempts: i32,
    pub(super) remaining_ms: i64,
    pub(super) channel: Option<String>,
    pub(super) lapsed_at_ms: Option<i64>,
    /// How many purchases the group has that the row is about.
    pub(super) members: Option<i32>,
    /// The orders whose holds are released together, and when each of them lapsed.
    pub(super) released: Option<Vec<Uuid>>,
    pub(super) lapsed: Option<Vec<Option<i64>>>,
    pub(super) trace: Option<String>,
}

/// What a row asks for, by the worker that carries it out.
pub(super) enum Task {
    Publish(BrokerMessage),
    Release(UnitRelease),
}

impl ClaimedRow {
    pub(super) fn task(&self) -> Result<Task, LedgerError> {
        let kind = self.kind.parse().map_err(|_| LedgerError::Unreadable("outbox.kind"))?;
        let order = OrderId(self.order_id);
        Ok(match kind {
            OutboxKind::OrderPlaced => Task::Publish(BrokerMessage::OrderPlaced { order }),
            OutboxKind::OrderExpire => {
                let due_at = self.due_at.ok_or(LedgerError::Unreadable("outbox.due_at"))?;
                let (due_at_ms, remaining_ms) = (due_at.timestamp_millis(), self.remaining_ms);
                Task::Publish(BrokerMessage::OrderExpire { order, due_at_ms, remaining_ms })
            }
            OutboxKind::PaymentRequested => {
                // A row that lacks its payment has no channel, and waits as one whose channel is not configured.
                let channel = self.channel.clone().unwrap_or_default();
                Task::Publish(BrokerMessage::PaymentRequested { payment: PaymentId(self.order_id), channel })
            }
            OutboxKind::HoldRelease => {
                let returns_units = self.returns_units.ok_or(LedgerError::Unreadable("outbox.returns_units"))?;
                Task::Release(UnitRelease::Hold(HoldRelease { order, returns_units, lapsed_at_ms: self.lapsed_at_ms }))
            }
            OutboxKind::WaveRelease => {
                Task::Release(UnitRelease::Wave { wave: WaveId(self.order_id), units: self.quantity.into() })
            }
            OutboxKind::GroupPlaced => {
                Task::Publish(BrokerMessage::GroupPlaced { group: GroupId(self.order_id), members: self.group_size() })
            }
            OutboxKind::GroupExpire => Task::Publish(BrokerMessage::GroupExpire {
                group: GroupId(self.order_id),
                members: self.group_size(),
                remaining_ms: self.remaining_ms,
            }),
            OutboxKind::GroupRelease => {
                let returns_units = self.returns_units.ok_or(LedgerError::Unreadable("outbox.returns_units"))?;
                let orders = self.released.iter().flatten();
                let lapsed = self.lapsed.iter().flatten().copied().chain(std::iter::repeat(None));
                let hold = |(order, lapsed_at_ms): (&Uuid, _)| HoldRelease {
                    order: OrderId(*order),
                    returns_units,
                    lapsed_at_ms,
                };
                Task::Release(UnitRelease::Holds(orders.zip(lapsed).map(hold).collect()))
            }
        })
    }
}

impl ClaimedRow {
    /// A row that lacks its group is published, too, and does not stop the others.
    fn group_size(&self) -> usize {
        self.members.and_then(|members| usize::try_from(members).ok()).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantArray;

    use super::*;

    /// The statements name the kinds that they claim, because the partial indexes do. Work on groups has an index of its own.
    #[test]
    fn every_kind_is_claimed_by_the_statement_of_its_worker() {
        let is_of_group = |task: &Task| match task {
            Task::Publish(message) => {
                matches!(message, BrokerMessage::GroupPlaced { .. } | BrokerMessage::GroupExpire { .. })
            }
            Task::Release(release) => matches!(release, UnitRelease::Holds(_)),
        };
        let claimed = |task: &dyn Fn(&Task) -> bool| {
            let row = |kind: &OutboxKind| ClaimedRow {
                id: 1,
                kind: kind.to_string(),
                order_id: Uuid::nil(),
                sale_id: 1,
                shard: 0,
                quantity: 1,
                due_at: Some(DateTime::UNIX_EPOCH),
                returns_units: Some(true),
                attempts: 0,
                remaining_ms: 0,
                channel: Some("a".to_owned()),
                lapsed_at_ms: None,
                members: Some(2),
                released: Some(vec![Uuid::nil()]),
                lapsed: Some(vec![None]),
                trace: None,
            };
            let kinds = OutboxKind::VARIANTS.iter().filter(|kind| task(&row(kind).task().unwrap()));
            let names: Vec<String> = kinds.map(|kind| format!("'{kind}'")).collect();
            format!("status = 'pending' AND kind IN ({})", names.join(", "))
        };
        let source = include_str!("../outbox.rs").split_whitespace().collect::<Vec<_>>().join(" ");
        for statement in [
            claimed(&|task| matches!(task, Task::Publish(_)) && !is_of_group(task)),
            claimed(&|task| matches!(task, Task::Publish(_)) && is_of_group(task)),
            claimed(&|task| matches!(task, Task::Release(_)) && !is_of_group(task)),
            claimed(&|task| matches!(task, Task::Release(_)) && is_of_group(task)),
        ] {
            assert!(source.contains(&statement), "{statement}");
        }
    }
}
