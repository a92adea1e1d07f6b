//! Logs, traces and metrics.

mod metric_catalog;
pub mod spans;
mod trace_sender;

pub use metric_catalog::{Metric, MetricKind, described_metrics};

use std::io::IsTerminal;
use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// What is logged where RUST_LOG is not set. Malformed requests are left out: anyone can send any number of them.
const LOGGED: &str = "info,lapin=error,actix_http=off,actix_server=warn";

/// What is logged then beside a report that says what goes wrong.
const LOGGED_BESIDE_A_REPORT: &str = "error,lapin=off";

/// Upper bounds of the buckets for durations, in seconds: from one script call to a very slow commit.
const SECONDS: [f64; 12] = [0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];
/// Upper bounds of the buckets for batch sizes, up to the largest that the configuration allows.
const SIZES: [f64; 6] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0];

/// Starts logging. Logs go to stderr, because stdout belongs to what a command prints; RUST_LOG chooses what is logged.
/// `reports_failures` says that the process prints a report of what goes wrong, so that less is logged.
pub fn start_logs(reports_failures: bool) {
    let logged = if reports_failures { LOGGED_BESIDE_A_REPORT } else { LOGGED };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(logged));
    let logs = tracing_subscriber::fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
    // The filter is one of all layers. As that of one layer it would swallow a line now and then: one that follows a question
    // whether something is logged (tracing-subscriber 0.3).
    let _ = tracing_subscriber::registry().with(filter).with(logs).try_init();
}

pub fn metrics() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    let install = || {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
            .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_size".to_owned()), &SIZES));
        // Only empty buckets are refused, and these are not empty.
        let recorder = builder.unwrap_or_else(|_| PrometheusBuilder::new()).build_recorder();
        let handle = recorder.handle();
        let _ = metrics::set_global_recorder(recorder);
        metric_catalog::describe();
        handle
    };
    HANDLE.get_or_init(install).clone()
}
