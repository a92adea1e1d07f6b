//! Makes winners durable. The winners of one call to Redis are committed together, and answered after the commit (protocol, rules 3 to 5).

use std::collections::HashSet;
use std::rc::Rc;

use uuid::Uuid;

use super::confirmer::{Confirmation, Confirmer};
use seckill_runtime::die_at;
use seckill_domain::admission::PurchaseGroup;
use seckill_domain::ids::{GroupId, OrderId, Shard};
use seckill_redis::Gate;
use seckill_redis::thread_gate::CommitGroup;
use seckill_postgres::orders::committer::Committer;
use seckill_postgres::orders::purchase::{Committed, Purchase};
use seckill_telemetry::spans::{Span, SpanKind};

/// Commits the winners of one worker thread.
pub struct Winners {
    pub committer: Committer,
    pub confirmer: Confirmer,
    pub gate: Gate,
}

impl Winners {
    /// The closure for the batcher.
    pub fn into_commit(self) -> CommitGroup {
        let winners = Rc::new(self);
        Box::new(move |group| {
            let winners = Rc::clone(&winners);
            Box::pin(async move { winners.commit(group).await })
        })
    }

    /// Commits a group. Returns for each member, and then for each repeat, whether it is durable. A hold without a record stays: a repeat
    /// with the same key, or the reconciler, finishes it (rule 4).
    async fn commit(&self, group: PurchaseGroup) -> Vec<bool> {
        let PurchaseGroup { shards, hold, members, repeats } = group;
        let sale = shards.sale;
        // A traced winner is a group of one, because a message carries one trace. A repeat is one, too: it does not know its first group.
        let is_company = members.iter().filter(|member| member.trace.is_none()).nth(1).is_some();
        let shared = is_company.then(|| GroupId(Uuid::now_v7()));
        let members = members.into_iter().map(|member| (shared.filter(|_| member.trace.is_none()), member));
        let repeats = repeats.into_iter().map(|repeat| (None, repeat));
        let (mut purchases, mut spans) = (Vec::new(), Vec::new());
        for (shared, mut member) in members.chain(repeats) {
            die_at!("purchase.reserved");
            let group = shared.unwrap_or_else(|| GroupId::of_one(member.order));
            tracing::debug!(order = %member.order, %group, "to be committed");
            if let Some(trace) = &mut member.trace {
                let span = Span::below(trace, SpanKind::Internal, "commit");
                **trace = span.context().clone();
                spans.push((purchases.len(), span));
            }
            purchases.push(Purchase {
                order: member.order,
                sale,
                user: member.user.into_string(),
                units: member.units.get().cast_signed(),
                address: Some(member.address.to_string()),
                hold,
                group,
                trace: member.trace,
            });
        }
        let borrowed = |purchase: &Purchase| {
            let home = shards.home(&purchase.user);
            (home != hold.shard).then_some((home, purchase.order))
        };
        let mut loans: Vec<(Shard, OrderId)> = purchases.iter().filter_map(borrowed).collect();
        let orders: Vec<OrderId> = purchases.iter().map(|purchase| purchase.order).collect();
        let outcomes = self.committer.commit(purchases).await;
        for (place, mut span) in spans {
            let (order, committed) = (orders[place], outcomes[place]);
            span.set("order", order.to_string());
            tracing::debug!(%order, ?committed, trace_id = %span.context().trace_id(), "purchase");
            if committed != Committed::Durable {
                span.fail(format!("{committed:?}"));
            }
        }
        if outcomes.contains(&Committed::StaleEpoch) {
            // Another server has the sale, or it is being refilled.
            self.gate.refill_wanted.add(sale);
        }
        let is_durable: Vec<bool> = outcomes.iter().map(|committed| *committed == Committed::Durable).collect();
        let mut durable = Vec::with_capacity(orders.len());
        for (order, _) in orders.into_iter().zip(&is_durable).filter(|(_, is_durable)| **is_durable) {
            die_at!("purchase.committed");
            durable.push(order);
        }
        if !durable.is_empty() {
            if !loans.is_empty() {
                let durable: HashSet<OrderId> = durable.iter().copied().collect();
                loans.retain(|(_, order)| durable.contains(order));
            }
            self.confirmer.confirm(Confirmation { shards, shard: hold.shard, orders: durable, loans });
        }
        is_durable
    }
}
