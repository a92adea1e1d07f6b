//! Every metric: the table of docs/monitoring.md.

use strum::EnumString;

#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

/// The unit is the last word of a metric's name, before `total`.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    pub name: &'static str,
    pub kind: MetricKind,
    pub labels: &'static str,
    pub(crate) meaning: &'static str,
}

/// The metrics, in the order in which a purchase meets them.
pub fn described_metrics() -> impl Iterator<Item = Metric> {
    let rows = include_str!("../../../docs/monitoring.md").lines().filter(|line| line.starts_with("| `seckill_"));
    rows.filter_map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let (name, kind) = (cells.next()?.trim_matches('`'), cells.next()?.parse().ok()?);
        Some(Metric { name, kind, labels: cells.next()?, meaning: cells.next()? })
    })
}

pub(super) fn describe() {
    for metric in described_metrics() {
        match metric.kind {
            MetricKind::Counter => {
                metrics::describe_counter!(metric.name, metric.meaning);
                // A counter that first appears with its first event hides that event: Prometheus sees no rise.
                if metric.labels.is_empty() {
                    metrics::counter!(metric.name).increment(0);
                }
            }
            MetricKind::Gauge => metrics::describe_gauge!(metric.name, metric.meaning),
            MetricKind::Histogram => metrics::describe_histogram!(metric.name, metric.meaning),
        }
    }
}
