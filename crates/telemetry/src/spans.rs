//! The steps of sampled traces (docs/monitoring.md). Nothing is made, looked up or locked for a trace that is not sampled.

use std::borrow::Cow;
use std::num::{NonZeroU64, NonZeroU128};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanId, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
    Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, Span as Recorded};

pub use opentelemetry::trace::SpanKind;

use super::trace_sender::TraceSender;
use seckill_domain::trace_context::TraceContext;

/// Records spans. Not set without a collector.
static TRACER: OnceLock<SdkTracer> = OnceLock::new();
/// Decides which requests are traced. Not set in commands that serve none.
static SAMPLING: OnceLock<Sampling> = OnceLock::new();

#[derive(Debug, Clone, Copy)]
pub struct TraceSettings<'a> {
    pub service: &'static str,
    pub endpoint: &'a str,
    pub per_second_max: u32,
    /// Of requests without a trace, one in this many begins one; 0: none.
    pub sample_one_in: u32,
}

#[must_use]
pub struct SpanExport(Option<SdkTracerProvider>);

impl Drop for SpanExport {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(|provider| provider.shutdown()) {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// Starts tracing, once in a process and before its runtime: the exporter has its own thread. The queue of spans is bounded
/// (OTEL_BSP_MAX_QUEUE_SIZE); spans are lost while it is full.
pub fn start(terms: TraceSettings<'_>) -> anyhow::Result<SpanExport> {
    let provider = (!terms.endpoint.is_empty()).then(|| exporter(terms)).transpose().context("traces.endpoint")?;
    if let Some(provider) = &provider {
        _ = TRACER.set(provider.tracer("seckill"));
    }
    _ = SAMPLING.set(Sampling::new(terms.per_second_max, terms.sample_one_in));
    Ok(SpanExport(provider))
}

fn exporter(terms: TraceSettings<'_>) -> anyhow::Result<SdkTracerProvider> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(TraceSender::new()?)
        .with_endpoint(format!("{}/v1/traces", terms.endpoint.trim_end_matches('/')))
        .build()?;
    let process = KeyValue::new("process.pid", i64::from(std::process::id()));
    let resource = Resource::builder().with_service_name(terms.service).with_attribute(process).build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource);
    // `Sampling` has decided.
    Ok(provider.with_sampler(Sampler::AlwaysOn).build())
}

/// A step of a sampled trace. It ends when it is dropped. Without a collector it only carries its parent on.
pub struct Span {
    context: TraceContext,
    recorded: Option<Recorded>,
}

impl Span {
    pub fn below(parent: &TraceContext, kind: SpanKind, name: &'static str) -> Self {
        let recorded = TRACER.get().map(|tracer| {
            let parent = Context::new().with_remote_span_context(span_context(parent));
            tracer.build_with_context(SpanBuilder::from_name(name).with_kind(kind), &parent)
        });
        let span = recorded.as_ref().and_then(|recorded| ids(recorded.span_context()));
        Self { context: span.map_or_else(|| parent.clone(), |(_, span)| parent.at(span)), recorded }
    }

    /// Begins a trace; `None` without a collector.
    fn root(builder: SpanBuilder) -> Option<Self> {
        let recorded = TRACER.get()?.build_with_context(builder, &Context::new());
        let (trace, span) = ids(recorded.span_context())?;
        Some(Self { context: TraceContext::sampled(trace, span), recorded: Some(recorded) })
    }

    /// Begins a step for a group: its own trace, with a link to each traced member. `None` if no member is traced.
    pub fn group<'a>(
        name: &'static str,
        size: usize,
        members: impl Iterator<Item = &'a TraceContext>,
    ) -> Option<Box<Self>> {
        TRACER.get()?;
        let links: Vec<Link> = members.map(|member| Link::with_context(span_context(member))).collect();
        if links.is_empty() {
            return None;
        }
        let mut span = Self::root(SpanBuilder { links: Some(links), ..SpanBuilder::from_name(name) })?;
        span.set("group.size", i64::try_from(size).unwrap_or(i64::MAX));
        Some(Box::new(span))
    }

    /// Begins the trace of a request, or the next step of its caller's trace. `None`, nearly always, for a request that is not traced: its
    /// caller does not record, or this second has its most traces.
    pub fn of_request(caller: impl FnOnce() -> Option<TraceContext>, name: &'static str) -> Option<Box<Self>> {
        let sampling = SAMPLING.get()?;
        let span = match caller() {
            Some(caller) => {
                let is_traced = caller.is_sampled() && sampling.has_room();
                is_traced.then(|| Self::below(&caller, SpanKind::Server, name))
            }
            None if sampling.begins_one() && sampling.has_room() => {
                Self::root(SpanBuilder::from_name(name).with_kind(SpanKind::Server))
            }
            None => None,
        };
        span.map(Box::new)
    }

    pub const fn context(&self) -> &TraceContext {
        &self.context
    }

    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        if let Some(recorded) = &mut self.recorded {
            recorded.set_attribute(KeyValue::new(name, value));
        }
    }

    pub fn fail(&mut self, why: impl Into<Cow<'static, str>>) {
        if let Some(recorded) = &mut self.recorded {
            recorded.set_status(Status::error(why));
        }
    }

    pub fn log_span(&self) -> tracing::Span {
        tracing::info_span!("trace", trace_id = %self.context.trace_id())
    }
}

fn span_context(context: &TraceContext) -> SpanContext {
    let (trace, span) = (TraceId::from(context.trace().get()), SpanId::from(context.span().get()));
    SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::NONE)
}

/// `None` for a span that was begun while the process ends.
fn ids(context: &SpanContext) -> Option<(NonZeroU128, NonZeroU64)> {
    let trace = NonZeroU128::new(u128::from_be_bytes(context.trace_id().to_bytes()))?;
    Some((trace, NonZeroU64::new(u64::from_be_bytes(context.span_id().to_bytes()))?))
}

/// Which requests are traced. Any caller can mark a traceparent as sampled, so the number is bounded.
#[derive(Debug)]
struct Sampling {
    per_second_max: u32,
    one_in: u32,
    started: Instant,
    /// The second after `started`, and in the lower half the number of its traces.
    window: AtomicU64,
}

impl Sampling {
    fn new(per_second_max: u32, one_in: u32) -> Self {
        Self { per_second_max, one_in, started: Instant::now(), window: AtomicU64::new(0) }
    }

    fn begins_one(&self) -> bool {
        self.one_in > 0 && rand::random_range(0..self.one_in) == 0
    }

    fn has_room(&self) -> bool {
        self.has_room_in(self.started.elapsed().as_secs())
    }

    fn has_room_in(&self, second: u64) -> bool {
        let max = u64::from(self.per_second_max);
        let count = |window: u64| {
            let (newest, traced) = (window >> 32, window & u64::from(u32::MAX));
            // Another thread may already have seen the next second.
            let (second, traced) = if newest >= second { (newest, traced) } else { (second, 0) };
            (traced < max).then_some((second << 32) | (traced + 1))
        };
        self.window.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_room_for_so_many() {
        let traced = |sampling: &Sampling, second| (0..10).filter(|_| sampling.has_room_in(second)).count();
        let sampling = Sampling::new(3, 0);
        assert_eq!((traced(&sampling, 0), traced(&sampling, 0), traced(&sampling, 1)), (3, 0, 3));
        assert_eq!(traced(&sampling, 0), 0, "a thread that is behind");
        assert_eq!((traced(&sampling, 7), traced(&Sampling::new(0, 1), 0)), (3, 0));
    }

    #[test]
    fn none_or_one_in_so_many_begin_a_trace() {
        let begun = |one_in| (0..1000).filter(|_| Sampling::new(1, one_in).begins_one()).count();
        assert_eq!((begun(0), begun(1)), (0, 1000));
        assert!((1..1000).contains(&begun(10)));
    }

    #[test]
    fn without_a_collector_the_callers_step_is_the_parent_of_what_follows() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let caller = TraceContext::parse(text).unwrap().with_state("a=1");
        let span = Span::below(&caller, SpanKind::Internal, "step");
        assert_eq!(span.context(), &caller);
        assert!(Span::group("group", 2, [&caller].into_iter()).is_none());
        assert!(Span::of_request(|| Some(caller), "request").is_none(), "no sampling was started in this process");
    }
}
