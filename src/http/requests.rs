//! Counts requests that reach this service, by kind. The edge answers pages and repeated requests for a sale's state itself: the counts
//! show this.

use std::sync::OnceLock;

use metrics::Counter;
use strum::{IntoStaticStr, VariantArray};

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
enum Kind {
    /// The state of a sale, as a script.
    State,
    Api,
    /// Health and metrics of this instance.
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

/// Counts a request. The counters are looked up once, because every request passes here.
pub fn count_request(path: &str) {
    static COUNTERS: OnceLock<Vec<Counter>> = OnceLock::new();
    let counters = COUNTERS.get_or_init(|| Kind::VARIANTS.iter().map(|kind| counter((*kind).into())).collect());
    if let Some(counter) = counters.get(Kind::of(path) as usize) {
        counter.increment(1);
    }
}

fn counter(kind: &'static str) -> Counter {
    metrics::counter!("seckill_requests_total", "kind" => kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_of_one_kind() {
        for (path, kind) in [
            ("/sales/7/state.js", Kind::State),
            ("/sales/7", Kind::Page),
            ("/state.js", Kind::Page),
            ("/", Kind::Page),
            ("/api", Kind::Page),
            ("/api/v1/sales/7/state", Kind::Api),
            ("/metrics", Kind::Service),
        ] {
            assert_eq!(Kind::of(path), kind, "{path}");
        }
    }
}
