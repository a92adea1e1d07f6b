//! Every metric there is, with what it means. docs/metrics.md shows the same list, and a test holds the two together.

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// Only rises.
    Counter,
    Gauge,
    /// In buckets.
    Histogram,
}

/// A metric's name, labels and meaning. The unit is the last word of the name, before `total`.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    pub name: &'static str,
    pub sort: Sort,
    /// Comma-separated.
    pub labels: &'static str,
    pub means: &'static str,
}

const fn figure(name: &'static str, sort: Sort, labels: &'static str, means: &'static str) -> Metric {
    Metric { name, sort, labels, means }
}

/// In the order of a purchase's way.
pub const METRICS: [Metric; 43] = [
    figure(
        "seckill_answers_total",
        Sort::Counter,
        "code",
        "Answers to purchases that were accepted (`accepted`), and problems of all addresses, by their code",
    ),
    figure(
        "seckill_reads_total",
        Sort::Counter,
        "level",
        "Reads of sales and products, by where they were answered: `live`, `filter`, `memory`, `redis`, `postgres`…",
    ),
    figure("seckill_filter_items", Sort::Gauge, "", "Sales and products that the Bloom filter holds"),
    figure("seckill_filter_bits", Sort::Gauge, "", "Size of the Bloom filter"),
    figure("seckill_gate_batch_size", Sort::Histogram, "", "Buyers in one call of `reserve`"),
    figure("seckill_script_seconds", Sort::Histogram, "script", "A call of a Lua script, there and back"),
    figure("seckill_commit_batch_size", Sort::Histogram, "", "Winners in one commit"),
    figure("seckill_commit_seconds", Sort::Histogram, "", "Writing a group of winners down"),
    figure("seckill_outbox_pending", Sort::Gauge, "kind", "Rows of the outbox that wait to be carried out"),
    figure("seckill_outbox_parked", Sort::Gauge, "kind", "Rows of the outbox that are not tried again by themselves"),
    figure("seckill_outbox_oldest_seconds", Sort::Gauge, "kind", "Age of the oldest row that waits"),
    figure("seckill_relay_batch_size", Sort::Histogram, "", "Messages published together"),
    figure(
        "seckill_relayed_total",
        Sort::Counter,
        "result",
        "Messages given to the broker: `confirmed`, `no-room`, `unroutable`",
    ),
    figure("seckill_intake_batch_size", Sort::Histogram, "queue", "Messages settled together"),
    figure(
        "seckill_consumed_total",
        Sort::Counter,
        "queue, result",
        "Messages taken from the broker: `settled`, `poison`",
    ),
    figure("seckill_redelivered_total", Sort::Counter, "queue", "Messages that were delivered before"),
    figure("seckill_dead_letters", Sort::Gauge, "", "Messages in the dead-letter queue; NaN when it is gone"),
    figure("seckill_orders_total", Sort::Counter, "outcome", "Purchases that became orders: `accepted`, `rejected`"),
    figure("seckill_order_streams", Sort::Gauge, "", "Orders that buyers follow by server-sent events"),
    figure("seckill_holds_looked_into_total", Sort::Counter, "", "Holds that were unconfirmed for too long"),
    figure("seckill_holds_finished_total", Sort::Counter, "", "Of these, those that had no purchase row yet"),
    figure("seckill_drift_total", Sort::Counter, "", "Times that Redis sold other than what was left"),
    figure("seckill_drift_units_total", Sort::Counter, "", "Units that it was off by"),
    figure("seckill_refills_total", Sort::Counter, "", "Sales filled anew from PostgreSQL"),
    figure("seckill_permits_total", Sort::Counter, "policy, answer", "Permits asked for: `granted`, `refused`"),
    figure("seckill_policy_threshold", Sort::Gauge, "policy", "Where a threshold stands that moves by itself"),
    figure("seckill_outflow_waiting", Sort::Gauge, "channel", "Items of an outflow that wait or are being sent"),
    figure("seckill_outflow_oldest_seconds", Sort::Gauge, "channel", "Age of the oldest of them"),
    figure("seckill_outflow_parked", Sort::Gauge, "channel", "Items that are not sent again by themselves"),
    figure(
        "seckill_outflow_total",
        Sort::Counter,
        "outcome, channel",
        "Slots, by what came of them: `done`, `retry`, `parked`, `forfeited`, `late`, `overtaken`",
    ),
    figure("seckill_payments_waiting", Sort::Gauge, "", "Payments that wait for a slot of their channel"),
    figure(
        "seckill_payments_oldest_seconds",
        Sort::Gauge,
        "",
        "Age of the oldest of them: how long payments are delayed",
    ),
    figure("seckill_payment_wait_seconds", Sort::Histogram, "", "From the wish to pay to the payment's slot"),
    figure(
        "seckill_payments_sent_total",
        Sort::Counter,
        "outcome",
        "Payments given to their channel: `taken`, `refused`, `limited`, `unknown`, `unreachable`, `forfeited`",
    ),
    figure(
        "seckill_payments_under_way",
        Sort::Gauge,
        "",
        "Payments that a channel may have, and whose outcome is not known yet",
    ),
    figure(
        "seckill_callbacks_total",
        Sort::Counter,
        "result",
        "Callbacks: `applied`, `known`, `set-aside`, `not-believed`",
    ),
    figure(
        "seckill_callbacks_set_aside",
        Sort::Gauge,
        "",
        "Callbacks that do not fit, and that nobody has looked into yet",
    ),
    figure(
        "seckill_money_total",
        Sort::Counter,
        "about, outcome",
        "Payments and refunds that ended: `succeeded`, `failed`, `unwanted` (goes back by itself)",
    ),
    figure("seckill_refunds_waiting", Sort::Gauge, "", "Refunds that are not known to have arrived"),
    figure("seckill_refunds_failed", Sort::Gauge, "", "Refunds that their channel has refused"),
    figure(
        "seckill_order_events_total",
        Sort::Counter,
        "outcome",
        "Steps of orders sent to the shop, by what came of them: `delivered`, `failed`, `parked`, `postponed`, `overtaken`",
    ),
    figure("seckill_alarms", Sort::Gauge, "kind", "Things that are wrong at the moment"),
    figure(
        "seckill_step_failures_total",
        Sort::Counter,
        "step",
        "Steps of background work that failed and are tried again",
    ),
];

pub(super) fn describe() {
    for figure in METRICS {
        match figure.sort {
            Sort::Counter => metrics::describe_counter!(figure.name, figure.means),
            Sort::Gauge => metrics::describe_gauge!(figure.name, figure.means),
            Sort::Histogram => metrics::describe_histogram!(figure.name, figure.means),
        }
    }
}
