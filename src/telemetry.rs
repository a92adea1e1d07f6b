//! Logs, traces and metrics.

mod metric_catalog;
mod trace_sender;

pub use metric_catalog::{METRICS, Metric, MetricKind};

use std::io::IsTerminal;
use std::sync::OnceLock;

use anyhow::Context;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithHttpConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use trace_sender::TraceSender;

/// What is logged where RUST_LOG is not set. Malformed requests are left out: anyone can send any number of them.
const LOGGED: &str = "info,lapin=error,actix_http=off,actix_server=warn";

/// What is traced: the steps of a purchase that got a hold, and of what follows. A refused purchase has no span.
const TRACED: &str = "seckill=debug";

/// Upper bounds of the buckets for durations, in seconds: from one script call to a very slow commit.
const SECONDS: [f64; 12] = [0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];
/// Upper bounds of the buckets for batch sizes, up to the largest that the configuration allows.
const SIZES: [f64; 6] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0];

/// Sends the traces that are still waiting when it is dropped.
#[must_use]
pub struct Telemetry(Option<SdkTracerProvider>);

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(|provider| provider.shutdown()) {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

/// Starts logging and tracing. Logs go to stderr, because stdout belongs to what a command prints; RUST_LOG chooses what
/// is logged. Traces go to the OTLP collector (HTTP, protobuf) that OTEL_EXPORTER_OTLP_ENDPOINT names. Where that is not
/// set, spans are not recorded and cost nothing. Call it before a runtime starts: the exporter has a thread of its own.
///
/// # Errors
/// If OTEL_EXPORTER_OTLP_ENDPOINT is set and is not a valid address.
pub fn start() -> anyhow::Result<Telemetry> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOGGED));
    let logs = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .with_filter(filter);
    let provider = match std::env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT") {
        Some(endpoint) if !endpoint.is_empty() => Some(exporter().context("OTEL_EXPORTER_OTLP_ENDPOINT")?),
        _ => None,
    };
    let traces = provider.as_ref().map(|provider| {
        tracing_opentelemetry::layer().with_tracer(provider.tracer("seckill")).with_filter(EnvFilter::new(TRACED))
    });
    let _ = tracing_subscriber::registry().with(logs).with(traces).try_init();
    Ok(Telemetry(provider))
}

fn exporter() -> anyhow::Result<SdkTracerProvider> {
    let exporter =
        opentelemetry_otlp::SpanExporter::builder().with_http().with_http_client(TraceSender::new()?).build()?;
    let resource = Resource::builder().with_service_name("seckill").build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

/// The process's metrics. The first call installs the recorder and describes each metric.
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
