//! A step's place in a trace, in the form of W3C Trace Context (level 1): the headers `traceparent` and `tracestate`.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

pub const TRACEPARENT: &str = "traceparent";
pub const TRACESTATE: &str = "tracestate";

/// The length of a traceparent of version 00, and of the part that is read of later versions.
const PARENT_LEN: usize = 55;
/// A longer tracestate is dropped. The recommendation asks for this size.
const STATE_MAX: usize = 512;

/// A trace, and the step that causes the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    trace: NonZeroU128,
    span: NonZeroU64,
    sampled: bool,
    /// The text of other tracing systems, carried as it is.
    state: Option<Box<str>>,
}

impl TraceContext {
    /// A step of a sampled trace.
    pub const fn sampled(trace: NonZeroU128, span: NonZeroU64) -> Self {
        Self { trace, span, sampled: true, state: None }
    }

    #[must_use]
    pub fn at(&self, span: NonZeroU64) -> Self {
        Self { span, ..self.clone() }
    }

    /// `None` for a malformed traceparent, which is ignored: tracing never fails a request. Of later versions than 00 only the fields of 00 are
    /// read, as the recommendation asks.
    pub fn parse(traceparent: &str) -> Option<Self> {
        let (known, more) = traceparent.split_at_checked(PARENT_LEN)?;
        let mut fields = known.split('-');
        let (version, trace, span, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let all = [(version, 2), (trace, 32), (span, 16), (flags, 2)];
        // Upper case is malformed, too.
        let is_hex = |text: &str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if version == "ff" || all.iter().any(|(text, length)| text.len() != *length || !is_hex(text)) {
            return None;
        }
        if !more.is_empty() && (version == "00" || !more.starts_with('-')) {
            return None;
        }
        Some(Self {
            trace: NonZeroU128::new(u128::from_str_radix(trace, 16).ok()?)?,
            span: NonZeroU64::new(u64::from_str_radix(span, 16).ok()?)?,
            sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1,
            state: None,
        })
    }

    /// Adds a tracestate, unread. An empty one, a longer one and one with control characters are dropped.
    #[must_use]
    pub fn with_state(self, tracestate: &str) -> Self {
        let is_carried =
            (1..=STATE_MAX).contains(&tracestate.len()) && tracestate.bytes().all(|b| matches!(b, b' '..=b'~'));
        Self { state: is_carried.then(|| tracestate.into()), ..self }
    }

    /// Whether the trace is recorded. Other traces are not carried.
    pub const fn is_sampled(&self) -> bool {
        self.sampled
    }

    pub const fn trace(&self) -> NonZeroU128 {
        self.trace
    }

    pub const fn span(&self) -> NonZeroU64 {
        self.span
    }

    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace)
    }

    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        let state = self.state.as_deref().map(|state| (TRACESTATE, state.to_owned()));
        std::iter::once((TRACEPARENT, self.to_string())).chain(state)
    }

    /// One text for a column: the traceparent, and after a space the tracestate.
    pub fn to_text(&self) -> String {
        match &self.state {
            Some(state) => format!("{self} {state}"),
            None => self.to_string(),
        }
    }

    /// `None` for a malformed text, and for a trace that is not sampled.
    pub fn from_text(text: &str) -> Option<Self> {
        let (parent, state) = text.split_once(' ').unwrap_or((text, ""));
        Self::parse(parent).filter(Self::is_sampled).map(|context| context.with_state(state))
    }
}

/// The traceparent, of version 00.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// The recommendation's own example, and its other allowed forms.
    #[test]
    fn a_traceparent_is_read_and_written_alike() {
        let context = TraceContext::parse(GOOD).unwrap();
        assert_eq!((context.to_string().as_str(), context.is_sampled()), (GOOD, true));
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        let later = format!("cc{}-what-the-future-will-be-like", &GOOD[2..]);
        assert_eq!(TraceContext::parse(&later).unwrap(), context, "a later version is read as far as it is known");
        assert_eq!(TraceContext::parse(&format!("01{}", &GOOD[2..])).unwrap(), context);
        let other_flags = TraceContext::parse(&GOOD.replace("-01", "-ff")).unwrap();
        assert_eq!(other_flags.to_string(), GOOD, "flags that are not defined are not passed on");
        let unsampled = TraceContext::parse(&GOOD.replace("-01", "-00")).unwrap();
        assert!(!unsampled.is_sampled());
        assert_eq!(TraceContext::from_text(&unsampled.to_text()), None, "what is not sampled is not carried");
    }

    #[test]
    fn a_malformed_traceparent_is_none() {
        let (rest, cut) = (&GOOD[2..], &GOOD[..54]);
        let longer = [format!("{GOOD}-"), format!("{GOOD}-00"), format!("{GOOD}0"), format!("01{rest}x")];
        let other_version = ["ff", "0g", "0A"].map(|version| format!("{version}{rest}"));
        let (trace, span) =
            (("4bf92f3577b34da6a3ce929d0e0e4736", "0".repeat(32)), ("00f067aa0ba902b7", "0".repeat(16)));
        let zero = [trace, span].map(|(id, zero)| GOOD.replace(id, &zero));
        let replaced = [("4bf9", "4BF9"), ("4bf9", "+bf9"), ("-01", "-0x"), ("-01", "_01"), ("00-4", "004-")];
        let replaced = replaced.map(|(part, wrong)| GOOD.replace(part, wrong));
        let cut = [String::new(), "00".to_owned(), cut.to_owned(), format!(" {cut}"), format!("{cut}é")];
        let all = longer.into_iter().chain(other_version).chain(zero).chain(replaced).chain(cut);
        for wrong in all.chain([GOOD.to_ascii_uppercase()]) {
            assert_eq!(TraceContext::parse(&wrong), None, "{wrong:?}");
        }
    }

    /// The columns `trace` of outbox and orders have room for the longest.
    #[test]
    fn a_context_becomes_a_text_and_back() {
        let plain = TraceContext::parse(GOOD).unwrap();
        let full = plain.clone().with_state(&format!("a={},b={}", "x y".repeat(85), "y".repeat(252)));
        for context in [plain.clone(), full] {
            let text = context.to_text();
            assert!(text.len() <= 568, "{}", text.len());
            assert_eq!(TraceContext::from_text(&text), Some(context));
        }
        for dropped in [String::new(), "x".repeat(513), "a=\n".to_owned(), "a=é".to_owned()] {
            assert_eq!(plain.clone().with_state(&dropped), plain, "{dropped:?}");
        }
        assert_eq!(TraceContext::from_text("nonsense"), None);
    }
}
