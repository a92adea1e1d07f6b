//! Every metric, with its meaning. docs/monitoring.md shows the same list; a test compares the two.

use MetricKind::{Counter, Gauge, Histogram};

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts observations in buckets.
    Histogram,
}

/// A metric's name, labels and meaning. The unit is the last word of the name, before `total`.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    pub name: &'static str,
    pub kind: MetricKind,
    /// Comma-separated.
    pub labels: &'static str,
    pub meaning: &'static str,
}

const fn metric(name: &'static str, kind: MetricKind, labels: &'static str, meaning: &'static str) -> Metric {
    Metric { name, kind, labels, meaning }
}

/// In the order in which a purchase meets them.
pub const METRICS: [Metric; 65] = [
    metric(
        "seckill_requests_total",
        Counter,
        "kind",
        "Requests: `state` (state.js), `api`, `page`, `service` (health, metrics)",
    ),
    metric("seckill_answers_total", Counter, "code", "Accepted purchases (`accepted`), and problems by code"),
    metric(
        "seckill_shed_total",
        Counter,
        "what",
        "Requests answered 503 unread: `purchases`, `orders`, `cancellations`, `refunds`, `payments`, `callbacks`, `sign-ins`, `admin`, `admin changes`, `retries`, `exports`, `challenges`, `live streams`, `pictures`, `long answers` (above 16 KiB)",
    ),
    metric(
        "seckill_clients_cut_total",
        Counter,
        "what",
        "Connections cut: slow to send a `head` or to read an `answer`, too far `ahead` of the answers, or `idle`",
    ),
    metric("seckill_purchase_wait_seconds", Gauge, "", "Longest wait of a purchase before work on it, in five seconds"),
    metric("seckill_purchase_seconds", Histogram, "", "Time from arrival to 202 of accepted purchases"),
    metric(
        "seckill_reads_total",
        Counter,
        "level",
        "Reads of sales and products, answered by: `live`, `filter`, `memory`, `redis`, `postgres`…",
    ),
    metric("seckill_filter_items", Gauge, "", "Sales and products in the Bloom filter"),
    metric("seckill_filter_bits", Gauge, "", "Size of the Bloom filter"),
    metric("seckill_challenges_ready", Gauge, "kind", "Challenges drawn in advance: `image`, `slider`"),
    metric("seckill_challenges_total", Counter, "kind", "Challenges given to buyers: `image`, `slider`, `work`"),
    metric(
        "seckill_challenge_answers_total",
        Counter,
        "kind, result",
        "Answers to challenges: `right`, `wrong`, `repeated`, `expired`, `forged` (another buyer's or sale's)",
    ),
    metric("seckill_gate_batch_size", Histogram, "", "Buyers in one call of `reserve`"),
    metric("seckill_script_seconds", Histogram, "script", "Duration of a Lua script, with the network"),
    metric(
        "seckill_loans_total",
        Counter,
        "result",
        "Purchases whose home shard had too few units: `lent`, `home` (units came back), `refused`, `unknown` (a shard did not answer)",
    ),
    metric("seckill_commit_batch_size", Histogram, "", "Purchases in one commit"),
    metric("seckill_commit_seconds", Histogram, "", "Duration of such a commit"),
    metric("seckill_outbox_pending", Gauge, "kind", "Pending outbox rows, at most 200000 of each index"),
    metric("seckill_outbox_parked", Gauge, "kind", "Outbox rows waiting for an operator"),
    metric("seckill_outbox_oldest_seconds", Gauge, "kind", "Age of the oldest pending outbox row"),
    metric("seckill_orders_accepted", Gauge, "", "Accepted purchases without an order"),
    metric("seckill_relay_batch_size", Histogram, "", "Outbox rows published together"),
    metric("seckill_message_batch_size", Histogram, "kind", "Orders, groups or payments in one message"),
    metric(
        "seckill_relayed_total",
        Counter,
        "result",
        "Outbox rows published: `confirmed`, `no-room`, `unroutable`, `unanswered` (only this queue is silent), `no-channel` (not configured, not published)",
    ),
    metric("seckill_queue_marks_total", Counter, "queue", "Marks sent through queues with overdue messages"),
    metric(
        "seckill_queues_replaced_total",
        Counter,
        "queue",
        "Queues declared again because only they confirmed nothing",
    ),
    metric("seckill_intake_batch_size", Histogram, "queue", "Messages processed together"),
    metric("seckill_consumed_total", Counter, "queue, result", "Messages consumed: `settled`, `poison`"),
    metric("seckill_redelivered_total", Counter, "queue", "Messages delivered again"),
    metric("seckill_dead_letters", Gauge, "", "Messages in the dead-letter queue; NaN: no such queue"),
    metric("seckill_orders_total", Counter, "outcome", "Purchases turned into orders: `accepted`, `rejected`"),
    metric("seckill_groups_split_total", Counter, "", "Groups settled purchase by purchase, because the whole failed"),
    metric("seckill_order_streams", Gauge, "", "Open event streams of buyers' orders"),
    metric("seckill_live_streams", Gauge, "", "Open streams of the console's live page"),
    metric("seckill_live_samples_total", Counter, "", "Readings of a sale's figures for the live page"),
    metric("seckill_holds_looked_into_total", Counter, "", "Unconfirmed holds that were checked"),
    metric("seckill_holds_finished_total", Counter, "", "Of these, holds that were committed"),
    metric("seckill_loans_taken_back_total", Counter, "", "Loans of dead requests for which the lender held no units"),
    metric("seckill_drift_total", Counter, "", "Times that stock in Redis differed from PostgreSQL"),
    metric("seckill_drift_units_total", Counter, "", "Units by which it differed"),
    metric("seckill_refills_total", Counter, "", "Refills of a sale in Redis from PostgreSQL"),
    metric("seckill_refill_tickets_total", Counter, "", "Tickets written by refills, unfinished ones included"),
    metric("seckill_refill_failures_total", Counter, "", "Failed refills: the sale stays closed until one succeeds"),
    metric("seckill_refills_contested_total", Counter, "", "Sales filled on another server too: two masters"),
    metric(
        "seckill_cleared_total",
        Counter,
        "what",
        "Obsolete rows cleared: `outbox`, `messages`, `steps`, `lapsed-holds`, `groups`, `buyers`, `outflow-items`, `records`, `audit-log`",
    ),
    metric("seckill_permits_total", Counter, "policy, answer", "Requests for permits: `granted`, `refused`"),
    metric(
        "seckill_too_many_keys_total",
        Counter,
        "policy",
        "Of these, refused because their keys take too much memory",
    ),
    metric("seckill_policy_threshold", Gauge, "policy", "Current threshold of an adaptive policy"),
    metric("seckill_outflow_waiting", Gauge, "channel", "Outflow items waiting or in flight"),
    metric("seckill_outflow_oldest_seconds", Gauge, "channel", "Age of the oldest"),
    metric("seckill_outflow_parked", Gauge, "channel", "Outflow items waiting for an operator"),
    metric(
        "seckill_outflow_total",
        Counter,
        "outcome, channel",
        "Slots used: `done`, `retry`, `parked`, `forfeited`, `late`, `overtaken`",
    ),
    metric("seckill_payments_waiting", Gauge, "", "Payments waiting for their slot"),
    metric("seckill_payments_oldest_seconds", Gauge, "", "Age of the oldest: the delay of payments"),
    metric("seckill_payment_wait_seconds", Histogram, "", "Time from a request to pay to its slot"),
    metric(
        "seckill_payments_sent_total",
        Counter,
        "outcome",
        "Payments sent: `taken`, `refused`, `limited`, `unknown`, `unreachable`, `forfeited`",
    ),
    metric("seckill_payments_under_way", Gauge, "", "Payments with an unknown outcome"),
    metric("seckill_callbacks_total", Counter, "result", "Callbacks: `applied`, `known`, `set-aside`, `not-believed`"),
    metric("seckill_callbacks_set_aside", Gauge, "", "Contradicting callbacks that wait for an operator"),
    metric(
        "seckill_money_total",
        Counter,
        "about, outcome",
        "Payments and refunds that ended: `succeeded`, `failed`, `unwanted` (paid too late, refunded)",
    ),
    metric("seckill_refunds_waiting", Gauge, "", "Refunds not confirmed yet"),
    metric("seckill_refunds_failed", Gauge, "", "Refunds declined by their channel"),
    metric(
        "seckill_order_events_total",
        Counter,
        "outcome",
        "Order webhooks: `delivered`, `failed`, `parked`, `postponed`, `overtaken`",
    ),
    metric("seckill_alarms", Gauge, "kind", "Open alarms"),
    metric("seckill_step_failures_total", Counter, "step", "Failed steps of background work, which are retried"),
];

pub(super) fn describe() {
    for metric in METRICS {
        match metric.kind {
            Counter => {
                metrics::describe_counter!(metric.name, metric.meaning);
                // A counter that first appears with its first event hides that event: Prometheus sees no rise.
                if metric.labels.is_empty() {
                    metrics::counter!(metric.name).increment(0);
                }
            }
            Gauge => metrics::describe_gauge!(metric.name, metric.meaning),
            Histogram => metrics::describe_histogram!(metric.name, metric.meaning),
        }
    }
}
