//! The figures of the console's live page, and how they follow from counters.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::order::OrderStatus;
use super::sale::{SalePhase, SaleStatus};

/// Buckets of a histogram as Prometheus counts them: the upper bound in seconds, and the number of observations up to it.
pub(crate) type Buckets = Vec<(f64, u64)>;

/// The figures of one moment.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct LiveFigures {
    /// When they were read: PostgreSQL's clock.
    pub at_ms: i64,
    /// Of the instance that answers, and of all its sales and addresses. Null in the first event, because rates need two moments.
    pub instance: Option<InstanceFigures>,
    /// Null while Redis does not answer or does not have the sale.
    pub redis: Option<RedisFigures>,
    /// Null while PostgreSQL does not answer in time.
    pub ledger: Option<LedgerFigures>,
    /// The queues at RabbitMQ; null while they cannot be read.
    pub queues: Option<Vec<QueueFigures>>,
    pub drift: Drift,
}

/// What one instance has counted of itself since the moment before.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct InstanceFigures {
    pub requests_per_s: f64,
    pub(crate) accepted_per_s: f64,
    /// Answered problems, by their code. A code appears after its first answer.
    pub(crate) refused_per_s: BTreeMap<String, f64>,
    /// 99 of 100 accepted purchases of the last seconds were answered within this time; interpolated between the bounds of the
    /// histogram's buckets. Null if none was accepted.
    pub(crate) purchase_p99_ms: Option<f64>,
    /// How long purchases wait before they are worked on.
    pub(crate) purchase_wait_ms: f64,
}

/// What Redis has of the sale.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RedisFigures {
    /// False while the sale is being refilled.
    pub serving: bool,
    /// Units for sale; null when unlimited.
    pub available: Option<i64>,
    /// Holds whose record is not known to be committed.
    pub unconfirmed: i64,
    /// Purchases that ever got a hold, at all instances.
    pub winners: i64,
    /// Null where there is no moment before to compare with.
    pub winners_per_s: Option<f64>,
}

/// What PostgreSQL has of the sale, all of one snapshot: `total_stock` is `stock`, `kept_units`, `held_back_units` and the units of the
/// orders that are `pending_payment`, `paid` or `refunding` together, unless the stock is unlimited.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct LedgerFigures {
    /// When they were read. They are read less often where that takes long, and while purchases wait.
    pub read_at_ms: i64,
    pub status: SaleStatus,
    pub phase: SalePhase,
    /// -1: unlimited.
    pub total_stock: i64,
    pub stock: i64,
    /// Units of waves that are not released yet.
    pub held_back_units: i64,
    /// Units of refunded orders that are not for sale again.
    pub kept_units: i64,
    /// Orders and their units by status; purchases that have no order yet are `accepted`.
    pub orders: Vec<OrderFigures>,
    pub outbox: OutboxFigures,
    /// Whether an alarm about the sale's drift is open.
    pub drift_alarm: bool,
}

/// The orders of one status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct OrderFigures {
    pub status: OrderStatus,
    pub orders: i64,
    pub units: i64,
    pub amount_cents: i64,
}

/// Rows of the outbox that are still to be done, of all sales. Each number ends at 10000, so that counting stays cheap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct OutboxFigures {
    /// Messages to be published.
    pub pending: i64,
    /// Units to be given back to Redis.
    pub releasing: i64,
    /// Purchases, and groups of them, that were published and have no order yet.
    pub sent: i64,
    /// Rows that are not retried automatically.
    pub parked: i64,
}

/// Messages of one queue at RabbitMQ that are ready to be delivered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct QueueFigures {
    pub queue: String,
    pub messages: u32,
}

/// How Redis and PostgreSQL differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Drift {
    /// What PostgreSQL has left, less the units of purchases without an order, less what Redis has for sale. While the sale moves, these
    /// are units on their way between the two. Null where one of them is unknown or unlimited.
    pub(crate) difference_units: Option<i64>,
    /// Whether nothing is on its way: then a difference is drift.
    pub(crate) at_rest: bool,
}

impl LedgerFigures {
    /// Units that nobody has. Those of purchases without an order are still in the stock.
    pub fn unsold_units(&self) -> i64 {
        self.stock - self.units(OrderStatus::Accepted)
    }

    pub fn units(&self, status: OrderStatus) -> i64 {
        self.orders.iter().filter(|of| of.status == status).map(|of| of.units).sum()
    }
}

impl Drift {
    pub fn between(ledger: Option<&LedgerFigures>, redis: Option<&RedisFigures>) -> Self {
        let (Some(ledger), Some(redis)) = (ledger, redis) else { return Self::default() };
        let accepted = ledger.units(OrderStatus::Accepted);
        let known = redis.available.filter(|_| redis.serving && ledger.total_stock != -1);
        Self {
            difference_units: known.map(|available| ledger.stock - accepted - available),
            at_rest: accepted == 0 && redis.unconfirmed == 0 && ledger.outbox.releasing == 0,
        }
    }
}

/// An instance's own counters at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counters {
    requests: u64,
    answers: BTreeMap<String, u64>,
    purchases: Buckets,
    wait_s: f64,
}

/// The counter of `Counters::answers` that is no problem.
const ACCEPTED: &str = "accepted";

impl Counters {
    /// Reads the instance's page for Prometheus. Missing series count as 0.
    pub fn read(metrics: &str) -> Self {
        let mut counters = Self::default();
        for line in metrics.lines().filter(|line| line.starts_with("seckill_")) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let Ok(value) = value.parse::<f64>() else { continue };
            // Counters are whole and far below 2^53.
            match name {
                "seckill_requests_total" => counters.requests += value as u64,
                "seckill_answers_total" => {
                    counters.answers.insert(label(labels, "code").to_owned(), value as u64);
                }
                "seckill_purchase_seconds_bucket" => {
                    let bound = label(labels, "le").parse().unwrap_or(f64::INFINITY);
                    counters.purchases.push((bound, value as u64));
                }
                "seckill_purchase_wait_seconds" => counters.wait_s = value,
                _ => {}
            }
        }
        counters.purchases.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        counters
    }

    /// The figures since `before`, which was `elapsed` ago. The latency is since `long_before`, because a second has few purchases.
    pub fn since(&self, before: &Self, elapsed: Duration, long_before: &Self) -> InstanceFigures {
        let per_s = |now: u64, then: u64| rate(now.saturating_sub(then), elapsed);
        let of = |counters: &Self, code: &str| counters.answers.get(code).copied().unwrap_or(0);
        let refused = self.answers.iter().filter(|(code, count)| code.as_str() != ACCEPTED && **count > 0);
        InstanceFigures {
            requests_per_s: per_s(self.requests, before.requests),
            accepted_per_s: per_s(of(self, ACCEPTED), of(before, ACCEPTED)),
            refused_per_s: refused.map(|(code, now)| (code.clone(), per_s(*now, of(before, code)))).collect(),
            purchase_p99_ms: quantile(&long_before.purchases, &self.purchases, 0.99).map(|s| rounded(s * 1000.0)),
            purchase_wait_ms: rounded(self.wait_s * 1000.0),
        }
    }
}

/// The value of a label in `a="b",c="d"}`.
fn label<'a>(labels: &'a str, name: &str) -> &'a str {
    let found = labels.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\""));
    found.and_then(|rest| rest.split('"').next()).unwrap_or_default()
}

/// Per second.
pub fn rate(count: u64, elapsed: Duration) -> f64 {
    let seconds = elapsed.as_secs_f64();
    if seconds > 0.0 { rounded(count as f64 / seconds) } else { 0.0 }
}

/// A chart shows no more digits.
fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// A quantile of the observations between two readings of a histogram, in seconds. It is interpolated within a bucket, as in Prometheus;
/// beyond the last bound it is that bound. `None` without observations.
fn quantile(before: &Buckets, after: &Buckets, quantile: f64) -> Option<f64> {
    let earlier = |bound: f64| before.iter().find(|(known, _)| *known == bound).map_or(0, |(_, count)| *count);
    let observed: Vec<(f64, u64)> =
        after.iter().map(|(bound, count)| (*bound, count.saturating_sub(earlier(*bound)))).collect();
    let total = observed.last().map_or(0, |(_, count)| *count);
    if total == 0 {
        return None;
    }
    let rank = quantile * total as f64;
    let (mut lower, mut below) = (0.0, 0);
    for (bound, count) in observed {
        if count as f64 >= rank {
            let inside = (count - below).max(1) as f64;
            let part = (rank - below as f64) / inside;
            return Some(if bound.is_finite() { lower + (bound - lower) * part } else { lower });
        }
        (lower, below) = (bound, count);
    }
    Some(lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "# TYPE seckill_answers_total counter\nseckill_requests_total{kind=\"api\"} 10\n\
                          seckill_answers_total{code=\"sold-out\"} 5\nseckill_purchase_seconds_bucket{le=\"0.001\"} 0\n\
                          seckill_purchase_seconds_bucket{le=\"0.002\"} 0\nseckill_purchase_seconds_bucket{le=\"+Inf\"} 0\n";
    const AFTER: &str = "seckill_requests_total{kind=\"api\"} 30\nseckill_requests_total{kind=\"page\"} 4\n\
                         seckill_answers_total{code=\"sold-out\"} 7\nseckill_answers_total{code=\"accepted\"} 3\n\
                         seckill_purchase_seconds_bucket{le=\"0.001\"} 50\nseckill_purchase_seconds_bucket{le=\"0.002\"} 100\n\
                         seckill_purchase_seconds_bucket{le=\"+Inf\"} 100\nseckill_purchase_wait_seconds 0.0015\nother 9\n";

    #[test]
    fn rates_and_the_latency_follow_from_two_readings() {
        let (before, after) = (Counters::read(BEFORE), Counters::read(AFTER));
        let figures = after.since(&before, Duration::from_secs(2), &before);
        assert_eq!((figures.requests_per_s, figures.accepted_per_s), (12.0, 1.5));
        assert_eq!(figures.refused_per_s, [("sold-out".to_owned(), 1.0)].into());
        assert_eq!((figures.purchase_p99_ms, figures.purchase_wait_ms), (Some(1.98), 1.5));
        let quiet = after.since(&after, Duration::from_secs(1), &after);
        assert_eq!((quiet.requests_per_s, quiet.purchase_p99_ms), (0.0, None));
    }

    #[test]
    fn beyond_the_last_bound_the_latency_is_that_bound() {
        let slow = vec![(0.001, 0), (5.0, 10), (f64::INFINITY, 1000)];
        assert_eq!(quantile(&Vec::new(), &slow, 0.99), Some(5.0));
        assert_eq!(quantile(&Vec::new(), &Vec::new(), 0.99), None);
    }
}
