//! Every metric, with its meaning. docs/metrics.md shows the same list; a test compares the two.

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
        "Requests that reached this instance: `state` (state.js of a sale), `api`, `page` (pages and their files), `service` (health and metrics)",
    ),
    metric(
        "seckill_answers_total",
        Counter,
        "code",
        "Accepted purchases (`accepted`), and the problems that all addresses answered with, by their code",
    ),
    metric(
        "seckill_shed_total",
        Counter,
        "what",
        "Requests answered 503 unread because too many came: `purchases`, `orders`, `cancellations`, `refunds`, `payments` (also reports of their success), `callbacks`, `sign-ins`, `admin`, `admin changes`, `retries` (of parked rows: another one is under way), `exports` (another one is under way, or one took too long), `challenges` (none was ready, or purchases waited for long), `live streams`, `pictures`, `long answers` (static files and other answers above 16 KiB)",
    ),
    metric(
        "seckill_clients_cut_total",
        Counter,
        "what",
        "Connections that were cut: the client took too long to send a `head` on a kept-alive connection or to read an `answer`, sent too far `ahead` of the answers, or was `idle` and actix-web had not noticed",
    ),
    metric(
        "seckill_purchase_wait_seconds",
        Gauge,
        "",
        "How long purchases wait in this process before they are worked on: the longest of the last five seconds",
    ),
    metric(
        "seckill_purchase_seconds",
        Histogram,
        "",
        "Time from the arrival of a purchase with its body to its 202; of accepted purchases only",
    ),
    metric(
        "seckill_reads_total",
        Counter,
        "level",
        "Reads of sales and products, by the place that answered them: `live`, `filter`, `memory`, `redis`, `postgres`…",
    ),
    metric("seckill_filter_items", Gauge, "", "Sales and products in the Bloom filter"),
    metric("seckill_filter_bits", Gauge, "", "Size of the Bloom filter"),
    metric(
        "seckill_challenges_ready",
        Gauge,
        "kind",
        "Challenges that are drawn and wait for a buyer: `image`, `slider`",
    ),
    metric("seckill_challenges_total", Counter, "kind", "Challenges given to buyers: `image`, `slider`, `work`"),
    metric(
        "seckill_challenge_answers_total",
        Counter,
        "kind, result",
        "Answers to challenges: `right`, `wrong`, `repeated` (answered before), `expired`, `forged` (not this buyer's of this sale)",
    ),
    metric("seckill_gate_batch_size", Histogram, "", "Buyers in one call of `reserve`"),
    metric("seckill_script_seconds", Histogram, "script", "Duration of one call of a Lua script, with the network"),
    metric(
        "seckill_loans_total",
        Counter,
        "result",
        "Purchases whose home shard had too few units, by what became of them: `lent` by another shard, `home` (the home shard had units by then), `refused`, `unknown` (a shard did not answer, or did not serve: a repeat or the reconciler finishes it)",
    ),
    metric("seckill_commit_batch_size", Histogram, "", "Purchases in one commit"),
    metric("seckill_commit_seconds", Histogram, "", "Duration of committing a group of purchases"),
    metric(
        "seckill_outbox_pending",
        Gauge,
        "kind",
        "Outbox rows that wait to be carried out; at most 200000 of each index are counted",
    ),
    metric("seckill_outbox_parked", Gauge, "kind", "Outbox rows that are parked: they are not retried automatically"),
    metric("seckill_outbox_oldest_seconds", Gauge, "kind", "Age of the oldest pending outbox row"),
    metric("seckill_orders_accepted", Gauge, "", "Accepted purchases that have no order yet"),
    metric("seckill_relay_batch_size", Histogram, "", "Outbox rows published together"),
    metric(
        "seckill_message_batch_size",
        Histogram,
        "kind",
        "Orders, groups of orders or payments in one message to the broker",
    ),
    metric(
        "seckill_relayed_total",
        Counter,
        "result",
        "Outbox rows published to the broker, by its answer: `confirmed`, `no-room`, `unroutable`, `unanswered` (the queue is silent, others are not); and `no-channel`: payments of a channel that is not configured, which are not published",
    ),
    metric("seckill_queue_marks_total", Counter, "queue", "Marks sent through queues that hold overdue messages"),
    metric(
        "seckill_queues_replaced_total",
        Counter,
        "queue",
        "Queues that were deleted and declared anew because they confirmed nothing while others did",
    ),
    metric("seckill_intake_batch_size", Histogram, "queue", "Messages processed together"),
    metric(
        "seckill_consumed_total",
        Counter,
        "queue, result",
        "Messages consumed from the broker: `settled`, `poison`",
    ),
    metric("seckill_redelivered_total", Counter, "queue", "Messages that the broker had delivered before"),
    metric("seckill_dead_letters", Gauge, "", "Messages in the dead-letter queue; NaN if there is no such queue"),
    metric("seckill_orders_total", Counter, "outcome", "Purchases turned into orders: `accepted`, `rejected`"),
    metric(
        "seckill_groups_split_total",
        Counter,
        "",
        "Groups of purchases that could not be settled as a whole: their purchases were settled one by one",
    ),
    metric("seckill_order_streams", Gauge, "", "Open streams of server-sent events, each following one order"),
    metric("seckill_live_streams", Gauge, "", "Open streams of the console's live page"),
    metric(
        "seckill_live_samples_total",
        Counter,
        "",
        "Times that the figures of a sale were read for the live page: once a second for each sale that is watched at this instance, however many watch it",
    ),
    metric(
        "seckill_holds_looked_into_total",
        Counter,
        "",
        "Holds that stayed unconfirmed for too long and were checked",
    ),
    metric("seckill_holds_finished_total", Counter, "", "Of these, holds whose purchase row had to be written"),
    metric(
        "seckill_loans_taken_back_total",
        Counter,
        "",
        "Loans between shards whose requests died, and for which the lender held no units",
    ),
    metric("seckill_drift_total", Counter, "", "Times that the stock in Redis differed from PostgreSQL's"),
    metric("seckill_drift_units_total", Counter, "", "Units by which it differed"),
    metric("seckill_refills_total", Counter, "", "Refills of a sale in Redis from PostgreSQL"),
    metric(
        "seckill_refill_tickets_total",
        Counter,
        "",
        "Tickets that refills have written so far, unfinished refills included",
    ),
    metric(
        "seckill_refill_failures_total",
        Counter,
        "",
        "Refills that failed: the sale stays closed until one succeeds",
    ),
    metric(
        "seckill_refills_contested_total",
        Counter,
        "",
        "Sales that another instance has filled on another Redis server: there are two masters",
    ),
    metric(
        "seckill_cleared_total",
        Counter,
        "what",
        "Rows cleared that nothing needs any more: `outbox`, `messages`, `steps`, `lapsed-holds`, `groups`, `buyers`, `outflow-items`, `records`, `audit-log`",
    ),
    metric("seckill_permits_total", Counter, "policy, answer", "Requests for permits: `granted`, `refused`"),
    metric(
        "seckill_too_many_keys_total",
        Counter,
        "policy",
        "Of these, requests refused because their keys take too much of Redis's memory",
    ),
    metric("seckill_policy_threshold", Gauge, "policy", "Current threshold of a policy whose threshold adapts"),
    metric("seckill_outflow_waiting", Gauge, "channel", "Outflow items that wait or are being sent"),
    metric("seckill_outflow_oldest_seconds", Gauge, "channel", "Age of the oldest such item"),
    metric(
        "seckill_outflow_parked",
        Gauge,
        "channel",
        "Outflow items that are parked: they are not retried automatically",
    ),
    metric(
        "seckill_outflow_total",
        Counter,
        "outcome, channel",
        "Slots used, by outcome: `done`, `retry`, `parked`, `forfeited`, `late`, `overtaken`",
    ),
    metric("seckill_payments_waiting", Gauge, "", "Payments that wait for a slot of their channel"),
    metric(
        "seckill_payments_oldest_seconds",
        Gauge,
        "",
        "Age of the oldest such payment: the current delay of payments",
    ),
    metric("seckill_payment_wait_seconds", Histogram, "", "Time from the request to pay to the payment's slot"),
    metric(
        "seckill_payments_sent_total",
        Counter,
        "outcome",
        "Payments sent to their channel: `taken`, `refused`, `limited`, `unknown`, `unreachable`, `forfeited`",
    ),
    metric(
        "seckill_payments_under_way",
        Gauge,
        "",
        "Payments that a channel may have received and whose outcome is not yet known",
    ),
    metric("seckill_callbacks_total", Counter, "result", "Callbacks: `applied`, `known`, `set-aside`, `not-believed`"),
    metric(
        "seckill_callbacks_set_aside",
        Gauge,
        "",
        "Callbacks that contradict our records and that an operator has not yet resolved",
    ),
    metric(
        "seckill_money_total",
        Counter,
        "about, outcome",
        "Payments and refunds that ended: `succeeded`, `failed`, `unwanted` (paid too late, refunded automatically)",
    ),
    metric("seckill_refunds_waiting", Gauge, "", "Refunds that their channel has not yet confirmed"),
    metric("seckill_refunds_failed", Gauge, "", "Refunds that their channel has refused"),
    metric(
        "seckill_order_events_total",
        Counter,
        "outcome",
        "Order webhooks, by outcome: `delivered`, `failed`, `parked`, `postponed`, `overtaken`",
    ),
    metric("seckill_alarms", Gauge, "kind", "Alarms that are open"),
    metric("seckill_step_failures_total", Counter, "step", "Steps of background work that failed and are retried"),
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
