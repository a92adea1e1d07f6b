//! The trace that a request belongs to.

use actix_web::dev::RequestHead;
use actix_web::http::header::HeaderName;

use seckill_domain::trace_context::{TRACEPARENT, TRACESTATE, TraceContext};
use seckill_telemetry::spans::Span;

/// The header names, made once: every purchase looks for them.
static PARENT: HeaderName = HeaderName::from_static(TRACEPARENT);
static STATE: HeaderName = HeaderName::from_static(TRACESTATE);

pub fn request_span(request: &RequestHead, name: &'static str) -> Option<Box<Span>> {
    Span::of_request(|| caller(request), name)
}

/// The caller's trace. `None` if the traceparent is missing or malformed: that is never an error.
fn caller(request: &RequestHead) -> Option<TraceContext> {
    let mut parents = request.headers().get_all(&PARENT);
    let (Some(parent), None) = (parents.next(), parents.next()) else { return None };
    let caller = TraceContext::parse(parent.to_str().ok()?)?;
    let mut states = request.headers().get_all(&STATE).peekable();
    if !caller.is_sampled() || states.peek().is_none() {
        return Some(caller);
    }
    // Several headers form one list.
    let texts: Result<Vec<&str>, _> = states.map(|state| state.to_str()).collect();
    Some(caller.with_state(&texts.unwrap_or_default().join(",")))
}
