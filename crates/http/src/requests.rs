//! Counts requests that reach this service, by kind. The edge answers pages and repeated requests for a sale's state itself: the counts
//! show this.

use std::sync::OnceLock;

use metrics::Counter;
use strum::{IntoStaticStr, VariantArray};

#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
enum Kind {
    State,
    Api,
    Service,
    /// Pages, their files, and unknown addresses.
    Page,
}

impl Kind {
    fn of(path: &str) -> Self {
        match path {
            "/healthz" | "/readyz" | "/metrics" => Self::Service,
            _ if path.starts_with("/api/") => Self::Api,
            _ if path.starts_with("/sales/") && path.ends_with("/state.js") => Self::State,
            _ => Self::Page,
        }
    }
}

/// The counters are looked up once, because every request passes here.
pub fn count_request(path: &str) {
    static COUNTERS: OnceLock<Vec<Counter>> = OnceLock::new();
    let counter = |kind: &Kind| metrics::counter!("seckill_requests_total", "kind" => <&'static str>::from(*kind));
    let counters = COUNTERS.get_or_init(|| Kind::VARIANTS.iter().map(counter).collect());
    if let Some(counter) = counters.get(Kind::of(path) as usize) {
        counter.increment(1);
    }
}
