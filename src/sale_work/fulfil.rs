//! Purchases become orders, as their messages arrive (protocol, rule 7). One bad message does not delay the others.

use std::collections::HashMap;

use crate::domain::ids::OrderId;
use crate::domain::message::{OrderPlacedV1, OutboxKind};
use crate::domain::trace_context::TraceContext;
use crate::ledger::Ledger;
use crate::ledger::notices::Notifier;
use crate::ledger::outbox::RetryTerms;
use crate::queue::Received;
use crate::sale::SaleError;
use crate::telemetry::spans::{Span, SpanKind};

/// Turns purchases into orders.
#[derive(Clone)]
pub struct Fulfilment {
    pub ledger: Ledger,
    pub notifier: Notifier,
    pub retry: RetryTerms,
}

impl Fulfilment {
    /// Turns a batch of purchases into orders. Returns the indexes of messages that have failed for the last time.
    ///
    /// # Errors
    /// When PostgreSQL cannot be reached: the whole batch is to be tried again.
    #[tracing::instrument(level = "debug", name = "fulfil", skip_all, fields(messages = received.messages.len()))]
    pub async fn settle(&self, received: Received<OrderPlacedV1>) -> Result<Vec<usize>, SaleError> {
        let orders: Vec<OrderId> = received.messages.iter().map(|message| message.order_id).collect();
        let mut spans: HashMap<OrderId, Span> = HashMap::new();
        for (index, trace) in &received.traces {
            let mut span = Span::below(trace, SpanKind::Consumer, "fulfil");
            span.set("order", orders[*index].to_string());
            spans.insert(orders[*index], span);
        }
        let traces: HashMap<OrderId, TraceContext> =
            spans.iter().map(|(order, span)| (*order, span.context().clone())).collect();
        for order in &orders {
            let trace_id = traces.get(order).map(TraceContext::trace_id);
            tracing::debug!(%order, trace_id, "to be fulfilled");
        }
        let _group = Span::group("fulfil group", orders.len(), traces.values());
        let settled = self.settle_all(orders, &traces).await;
        if let Err(error) = &settled {
            spans.values_mut().for_each(|span| span.fail(error.to_string()));
        }
        settled
    }

    async fn settle_all(
        &self,
        orders: Vec<OrderId>,
        traces: &HashMap<OrderId, TraceContext>,
    ) -> Result<Vec<usize>, SaleError> {
        let mut failed = Vec::new();
        match self.ledger.fulfil_traced(&orders, traces).await {
            Ok(done) => {
                metrics::counter!("seckill_orders_total", "outcome" => "accepted").increment(done.accepted as u64);
                metrics::counter!("seckill_orders_total", "outcome" => "rejected").increment(done.rejected as u64);
            }
            Err(error) if error.is_outage() => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, messages = orders.len(), "batch failed, trying one by one");
                for (index, order) in orders.into_iter().enumerate() {
                    if self.settle_one(order, traces).await? {
                        failed.push(index);
                    }
                }
            }
        }
        self.notifier.outbox_changed();
        self.notifier.orders_changed();
        Ok(failed)
    }

    /// Fulfils one purchase alone; `true` when it has failed for the last time. Before that its outbox row causes the
    /// message to be sent again.
    async fn settle_one(&self, order: OrderId, traces: &HashMap<OrderId, TraceContext>) -> Result<bool, SaleError> {
        let Err(error) = self.ledger.fulfil_traced(&[order], traces).await else { return Ok(false) };
        if error.is_outage() {
            return Err(error.into());
        }
        let parked = self.ledger.fail_message(OutboxKind::OrderPlaced, order, &error.to_string(), self.retry).await?;
        let trace_id = traces.get(&order).map(TraceContext::trace_id);
        tracing::error!(%order, %error, parked, trace_id, "purchase not fulfilled");
        Ok(parked)
    }
}
