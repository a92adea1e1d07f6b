//! Packs outbox rows into messages (protocol, rule 6). Groups with the same route share a message.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::sale_work::group_work::in_parts;
use seckill_domain::delay::rung_for;
use seckill_domain::ids::GroupId;
use seckill_domain::message::{
    GroupsExpireV1, GroupsPlacedV1, ORDERS_A_MESSAGE, OutboxKind, PaymentRequestedV1, Version,
};
use seckill_postgres::outbox::{BrokerMessage, OutboxRow};
use seckill_rabbitmq::{Destination, Outgoing};

/// The messages for these rows, each with the places of its rows. A row that has failed goes alone. So does a traced one: a message has one
/// trace. Expiries share a message if they have the same delay on the ladder.
pub(super) fn messages_for(rows: &[OutboxRow<BrokerMessage>]) -> (Vec<Outgoing>, Vec<Vec<usize>>) {
    let (mut placed, mut expiries, mut alone) = (Vec::new(), BTreeMap::<i64, Vec<usize>>::new(), Vec::new());
    for (place, row) in rows.iter().enumerate() {
        match &row.task {
            _ if row.attempts > 0 || row.trace.is_some() => alone.push(place),
            BrokerMessage::GroupPlaced { .. } => placed.push(place),
            BrokerMessage::GroupExpire { remaining_ms, .. } => {
                expiries.entry(rung_for(*remaining_ms)).or_default().push(place);
            }
            BrokerMessage::PaymentRequested { .. } => alone.push(place),
        }
    }
    let parts = |places| in_parts(places, ORDERS_A_MESSAGE, |place| orders_of(&rows[*place]));
    let groups = |places: &[usize]| places.iter().map(|place| GroupId(rows[*place].task.key().1)).collect();
    let mut messages = Vec::new();
    for places in parts(placed) {
        messages.push((groups_placed(groups(&places)), places));
    }
    for (rung_ms, places) in expiries {
        messages.extend(parts(places).into_iter().map(|places| (groups_expire(groups(&places), rung_ms), places)));
    }
    messages.extend(alone.into_iter().map(|place| (message_for(&rows[place]), vec![place])));
    messages.into_iter().unzip()
}

fn orders_of(row: &OutboxRow<BrokerMessage>) -> usize {
    match row.task {
        BrokerMessage::GroupPlaced { members, .. } | BrokerMessage::GroupExpire { members, .. } => members,
        BrokerMessage::PaymentRequested { .. } => 1,
    }
}

fn message_for(row: &OutboxRow<BrokerMessage>) -> Outgoing {
    match &row.task {
        BrokerMessage::GroupPlaced { group, .. } => groups_placed(vec![*group]),
        BrokerMessage::GroupExpire { group, remaining_ms, .. } => groups_expire(vec![*group], *remaining_ms),
        BrokerMessage::PaymentRequested { payment, channel } => {
            let body = body(&PaymentRequestedV1 { version: Version, payment_id: *payment });
            let id = OutboxKind::PaymentRequested.message_id(payment.0);
            Outgoing { to: Destination::PaymentRequested { channel: channel.clone() }, id, body, trace: None }
        }
    }
}

fn groups_placed(groups: Vec<GroupId>) -> Outgoing {
    let id = OutboxKind::GroupPlaced.message_id_of_many(&groups);
    let body = body(&GroupsPlacedV1 { version: Version, groups });
    Outgoing { to: Destination::GroupsPlaced, id, body, trace: None }
}

pub(super) fn groups_expire(groups: Vec<GroupId>, remaining_ms: i64) -> Outgoing {
    let id = OutboxKind::GroupExpire.message_id_of_many(&groups);
    let body = body(&GroupsExpireV1 { version: Version, groups });
    Outgoing { to: Destination::GroupsExpire { remaining_ms }, id, body, trace: None }
}

/// Numbers and UUIDs always serialise. An empty body would be dead-lettered, not lost.
fn body(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use seckill_domain::ids::{SaleId, Shard};
    use seckill_domain::payment::PaymentId;
    use seckill_domain::trace_context::TraceContext;

    fn row(task: BrokerMessage) -> OutboxRow<BrokerMessage> {
        OutboxRow { id: 1, sale: SaleId::from_db(1), shard: Shard::FIRST, attempts: 0, task, trace: None }
    }

    fn group(n: usize) -> GroupId {
        GroupId(Uuid::from_u128(n as u128))
    }

    fn placed(n: usize, members: usize) -> OutboxRow<BrokerMessage> {
        row(BrokerMessage::GroupPlaced { group: group(n), members })
    }

    fn expire(n: usize, remaining_ms: i64) -> OutboxRow<BrokerMessage> {
        row(BrokerMessage::GroupExpire { group: group(n), members: 9, remaining_ms })
    }

    #[test]
    fn groups_share_a_message_up_to_a_number_of_orders() {
        let failed = OutboxRow { attempts: 1, ..placed(5, 2) };
        let rows = [
            placed(0, 100),
            placed(1, 100),
            placed(2, 51),
            placed(3, 1),
            placed(4, 300),
            failed,
            expire(6, 900_000),
            expire(7, 20_000),
            expire(8, 899_000),
        ];
        let (messages, carried) = messages_for(&rows);
        assert_eq!(carried, [vec![0, 1], vec![2, 3], vec![4], vec![7], vec![6, 8], vec![5]]);
        let placed = [0, 1, 2, 5].map(|place: usize| messages[place].to == Destination::GroupsPlaced);
        assert_eq!(placed, [true; 4]);
        assert_eq!(messages[3].to, Destination::GroupsExpire { remaining_ms: 20_000 });
        assert_eq!(messages[4].to, Destination::GroupsExpire { remaining_ms: 800_000 });
        let many: GroupsPlacedV1 = serde_json::from_slice(&messages[0].body).unwrap();
        assert_eq!(many.groups, [0, 1].map(group));
        assert_eq!(messages[0].id, OutboxKind::GroupPlaced.message_id_of_many(&many.groups));
    }

    #[test]
    fn what_is_traced_or_has_failed_goes_alone_and_so_does_a_payment() {
        let trace = TraceContext::from_text("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let traced = OutboxRow { trace: Some(Box::new(trace.unwrap())), ..placed(1, 1) };
        let failed = OutboxRow { attempts: 1, ..placed(2, 1) };
        let payment = BrokerMessage::PaymentRequested { payment: PaymentId(Uuid::nil()), channel: "a".to_owned() };
        let alone = |place: usize| (Destination::GroupsPlaced, vec![place]);
        let to_bank = (Destination::PaymentRequested { channel: "a".to_owned() }, vec![2]);
        let rows = [traced, failed, row(payment), placed(3, 1), placed(4, 1)];
        let together = (Destination::GroupsPlaced, vec![3, 4]);
        let (messages, carried) = messages_for(&rows);
        let sent: Vec<_> = messages.into_iter().map(|message| message.to).zip(carried).collect();
        assert_eq!(sent, [together, alone(0), alone(1), to_bank]);
    }
}
