//! Makes winners durable. The winners of one call to Redis are committed together, and answered after the commit (protocol, rules 3 to 5).

use std::rc::Rc;

use tokio::sync::mpsc;
use tokio::task::spawn_local;
use uuid::Uuid;

use super::confirmer::{Confirmation, Confirmer};
use seckill_domain::ids::GroupId;
use seckill_postgres::orders::committer::Committer;
use seckill_postgres::orders::purchase::{CommitOutcome, Purchase};
use seckill_redis::Gate;
use seckill_redis::thread_gate::{CallWinners, Winner};
use seckill_runtime::die_at;
use seckill_telemetry::spans::{Span, SpanKind};

/// Finishes the purchases of one worker thread.
pub struct Winners {
    pub committer: Committer,
    pub confirmer: Confirmer,
    pub gate: Gate,
}

impl Winners {
    /// Finishes the winners of each call, on this thread, until its batcher is dropped.
    pub async fn finish_all(self, mut calls: mpsc::UnboundedReceiver<CallWinners>) {
        let winners = Rc::new(self);
        while let Some(call) = calls.recv().await {
            let winners = Rc::clone(&winners);
            spawn_local(async move { winners.finish(call).await });
        }
    }

    /// Commit, answer, confirm. A hold without a record stays: a repeat with the same key, or the reconciler, finishes it (rule 4).
    async fn finish(&self, CallWinners { shards, hold, winners }: CallWinners) {
        // A traced winner is a group of one, because a message carries one trace. A repeat is one, too: it does not know its first group.
        let is_joined = |winner: &Winner| !winner.is_repeat && winner.request.trace.is_none();
        let is_company = winners.iter().filter(|winner| is_joined(winner)).nth(1).is_some();
        let shared = is_company.then(|| GroupId(Uuid::now_v7()));
        let (mut purchases, mut pending) = (Vec::with_capacity(winners.len()), Vec::with_capacity(winners.len()));
        for winner in winners {
            die_at!("purchase.reserved");
            let group = shared.filter(|_| is_joined(&winner));
            let Winner { mut request, answer, .. } = winner;
            let order = request.order;
            let group = group.unwrap_or_else(|| GroupId::of_one(order));
            tracing::debug!(%order, %group, "to be committed");
            let span = request.trace.as_mut().map(|trace| {
                let span = Span::below(trace, SpanKind::Internal, "commit");
                **trace = span.context().clone();
                span
            });
            let home = shards.home(request.user.as_str());
            pending.push((order, home, span, answer));
            purchases.push(Purchase {
                order,
                sale: shards.sale,
                user: request.user.into_string(),
                units: request.units.get().cast_signed(),
                address: Some(request.address.to_string()),
                hold,
                group,
                trace: request.trace,
            });
        }
        let outcomes = self.committer.commit(purchases).await;
        if outcomes.contains(&CommitOutcome::StaleEpoch) {
            // Another server has the sale, or it is being refilled.
            self.gate.refill_wanted.add(shards.sale);
        }
        let mut durable = Confirmation { shards, shard: hold.shard, orders: Vec::new(), loans: Vec::new() };
        for ((order, home, span, answer), committed) in pending.into_iter().zip(outcomes) {
            let is_durable = committed == CommitOutcome::Durable;
            if let Some(mut span) = span {
                span.set("order", order.to_string());
                tracing::debug!(%order, ?committed, trace_id = %span.context().trace_id(), "purchase");
                if !is_durable {
                    span.fail(format!("{committed:?}"));
                }
            }
            if is_durable {
                die_at!("purchase.committed");
                durable.orders.push(order);
                if home != hold.shard {
                    durable.loans.push((home, order));
                }
            }
            answer.give(is_durable);
        }
        if !durable.orders.is_empty() {
            self.confirmer.confirm(durable);
        }
    }
}
