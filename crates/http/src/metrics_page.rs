//! The metrics page. A rendering stays in memory until the slowest client has read it, so the number of renderings is bounded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Renderings that clients may be reading at the same time, about 100 kB each.
const RENDERINGS_MAX: usize = 8;
const SHARED_FOR: Duration = Duration::from_secs(1);

pub struct MetricsPage {
    handle: PrometheusHandle,
    places: Arc<Semaphore>,
    last: Mutex<Option<(Instant, Bytes)>>,
}

struct Rendering {
    text: String,
    _place: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Rendering {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl MetricsPage {
    pub fn new(handle: PrometheusHandle) -> Self {
        Self { handle, places: Arc::new(Semaphore::new(RENDERINGS_MAX)), last: Mutex::default() }
    }

    /// The current metrics. While many clients read, they may be one second old.
    pub(crate) fn text(&self, now: Instant) -> Bytes {
        let mut last = self.last.lock();
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        match &*last {
            Some((at, text)) if place.is_none() && now.saturating_duration_since(*at) < SHARED_FOR => text.clone(),
            _ => {
                let text = Bytes::from_owner(Rendering { text: self.handle.render(), _place: place });
                *last = Some((now, text.clone()));
                text
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn only_a_crowd_that_does_not_read_shares_a_rendering() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || metrics::counter!("purchases").increment(1));
        let page = MetricsPage::new(recorder.handle());
        let now = Instant::now();
        let held: Vec<Bytes> = (0..RENDERINGS_MAX).map(|_| page.text(now)).collect();
        let later = now + SHARED_FOR / 2;
        let shared = |text: &Bytes| held.iter().any(|other| other.as_ptr() == text.as_ptr());
        assert!(shared(&page.text(later)));
        assert!(!shared(&page.text(now + SHARED_FOR)));
    }
}
