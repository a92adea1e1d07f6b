//! Turns purchases into orders when the messages of their groups arrive (protocol, rule 7). One bad purchase does not delay the others.

use std::collections::HashMap;

use super::group_work::GroupWork;
use crate::sale::SaleError;
use seckill_domain::ids::GroupId;
use seckill_domain::message::{GroupsPlacedV1, OutboxKind};
use seckill_domain::trace_context::TraceContext;
use seckill_postgres::LedgerError;
use seckill_postgres::orders::groups::{GroupSize, Settling, Traces};
use seckill_postgres::orders::one::SettledOne;
use seckill_rabbitmq::MessageBatch;
use seckill_telemetry::spans::{Span, SpanKind};

impl GroupWork {
    /// Turns the purchases of groups into orders. A group that cannot be settled whole is split into groups of one, which get their own
    /// messages. If a group of one fails, its message is sent again later, and finally parked. After an error, retry the whole batch.
    #[tracing::instrument(level = "debug", name = "fulfil", skip_all, fields(messages = received.messages.len()))]
    pub async fn fulfil(&self, received: MessageBatch<GroupsPlacedV1>) -> Result<(), SaleError> {
        let mut spans = spans_of(&received);
        let traces: Traces = spans.iter().map(|(group, span)| (*group, span.context().clone())).collect();
        let _group = Span::group("fulfil group", received.messages.len(), traces.values());
        let settled = self.settle_all(received.messages, &traces).await;
        if let Err(error) = &settled {
            spans.values_mut().for_each(|span| span.fail(error.to_string()));
        }
        Ok(settled?)
    }

    async fn settle_all(&self, messages: Vec<GroupsPlacedV1>, traces: &Traces) -> Result<(), LedgerError> {
        let groups: Vec<GroupId> = messages.into_iter().flat_map(|message| message.groups).collect();
        let groups = self.ledger.orders.unsettled_groups(&groups).await?;
        let settle = |groups: Vec<GroupSize>| async move { self.settle_together(&groups, traces).await };
        self.in_transactions(OutboxKind::GroupPlaced, groups, settle).await.map(drop)
    }

    async fn settle_together(&self, together: &[GroupSize], traces: &Traces) -> Result<Vec<()>, LedgerError> {
        let groups: Vec<GroupId> = together.iter().map(|size| size.group).collect();
        for group in &groups {
            let trace_id = traces.get(group).map(TraceContext::trace_id);
            tracing::debug!(%group, trace_id, "to be fulfilled");
        }
        match self.ledger.orders.settle_groups(&groups, traces).await? {
            Settling::Settled { orders } => count("accepted", orders),
            Settling::Unusual(why) if groups.len() == 1 => self.settle_unusual(&together[0], &why, traces).await?,
            Settling::Unusual(why) => {
                tracing::warn!(why, groups = groups.len(), "groups not settled together; trying one by one");
                for size in together {
                    if size.members == 1 {
                        self.settle_unusual(size, &why, traces).await?;
                        continue;
                    }
                    match self.ledger.orders.settle_groups(&[size.group], traces).await? {
                        Settling::Settled { orders } => count("accepted", orders),
                        Settling::Unusual(why) => self.settle_unusual(size, &why, traces).await?,
                    }
                }
            }
        }
        Ok(Vec::new())
    }

    /// Splits a group. A group of one is accepted or rejected. If this fails, the message is sent again later, and finally parked.
    async fn settle_unusual(&self, size: &GroupSize, why: &str, traces: &Traces) -> Result<(), LedgerError> {
        let group = size.group;
        let settled = if size.members > 1 {
            self.ledger.orders.split_group(group, why).await.map(|ones| {
                tracing::warn!(%group, why, ones, "group split; its purchases are settled one by one");
                metrics::counter!("seckill_groups_split_total").increment(1);
            })
        } else {
            self.ledger.orders.settle_one(group, traces).await.map(|settled| match settled {
                SettledOne::Accepted => count("accepted", 1),
                SettledOne::Rejected(_) => count("rejected", 1),
                SettledOne::Known => {}
            })
        };
        match settled {
            Err(error) if !error.is_temporary() => {
                let failure = error.to_string();
                let parked =
                    self.ledger.outbox.fail_message(OutboxKind::GroupPlaced, group, &failure, self.retry).await?;
                let trace_id = traces.get(&group).map(TraceContext::trace_id);
                tracing::error!(%group, %error, why, parked, trace_id, "group not settled");
                Ok(())
            }
            settled => settled,
        }
    }
}

/// A span for each traced message. Such a message has one group.
fn spans_of(received: &MessageBatch<GroupsPlacedV1>) -> HashMap<GroupId, Span> {
    let mut spans = HashMap::new();
    for (index, trace) in &received.traces {
        let Some(group) = received.messages[*index].groups.first() else { continue };
        let mut span = Span::below(trace, SpanKind::Consumer, "fulfil");
        span.set("order", group.to_string());
        spans.insert(*group, span);
    }
    spans
}

fn count(outcome: &'static str, orders: usize) {
    metrics::counter!("seckill_orders_total", "outcome" => outcome).increment(orders as u64);
}
