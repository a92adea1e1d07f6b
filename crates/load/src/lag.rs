//! How far the crowd was sent behind its own schedule, so that a reader can tell this program's lateness from the service's.

use std::fmt;

use serde::Serialize;

use super::measurements::Settled;
use super::statistics::latency;

/// A person does not notice less, and latencies of a service that copes are of this size.
pub const LATE_MS: u64 = 50;

/// How late the first requests of arrivals left, by the schedule. All latencies include it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lag {
    pub p99_ms: f64,
    pub longest_ms: f64,
    /// The part of it in which a connection was free: the generator itself had too little processor time. The rest was spent
    /// waiting until the service answered on one of the connections.
    pub own_p99_ms: f64,
    pub own_longest_ms: f64,
    /// Arrivals sent more than 50 ms late.
    pub late: u64,
    /// More than one arrival in a hundred was.
    pub fell_behind: bool,
}

impl Lag {
    /// The lag of these arrivals; none if there are none.
    pub(super) fn of<'a>(settled: impl Iterator<Item = &'a Settled> + Clone) -> Option<Self> {
        let all = latency(settled.clone().map(|settled| settled.lag_us))?;
        let own = latency(settled.clone().map(|settled| settled.own_lag_us))?;
        let late = settled.filter(|settled| settled.lag_us > LATE_MS * 1_000).count() as u64;
        Some(Self {
            p99_ms: all.p99_ms,
            longest_ms: all.max_ms,
            own_p99_ms: own.p99_ms,
            own_longest_ms: own.max_ms,
            late,
            fell_behind: late * 100 > all.arrivals,
        })
    }

    /// Why the arrivals were late, and what to do about it.
    pub(super) fn cause(&self) -> &'static str {
        if self.own_p99_ms > LATE_MS as f64 {
            "the generator had too little processor time: use --threads, or another machine"
        } else {
            "all connections waited for answers: use --connections, unless this is what the service takes"
        }
    }
}

impl fmt::Display for Lag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p99_ms, longest_ms, own_p99_ms, own_longest_ms, .. } = self;
        write!(
            f,
            "p99 {p99_ms:.1} ms and longest {longest_ms:.1} ms behind, of which the generator's own {own_p99_ms:.1} ms and \
             {own_longest_ms:.1} ms"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::reply::AnswerKind;
    use super::*;

    fn settled(lag_ms: u64, own_lag_ms: u64) -> Settled {
        let (lag_us, own_lag_us) = (lag_ms * 1_000, own_lag_ms * 1_000);
        Settled { arrival: 0, answered_us: 0, waited_us: lag_us, lag_us, own_lag_us, kind: AnswerKind::SoldOut }
    }

    /// One late arrival in a hundred is chance; more are a crowd that was not sent as planned, and the cause is named.
    #[test]
    fn falling_behind_is_noticed_with_its_cause() {
        let on_time = vec![settled(0, 0); 99];
        let lag = |late: &[Settled]| Lag::of(on_time.iter().chain(late)).unwrap();
        let one = lag(&[settled(200, 200)]);
        assert_eq!((one.late, one.fell_behind, one.p99_ms), (1, false, 0.0));
        assert!((one.longest_ms / 200.0 - 1.0).abs() < 0.001);
        let own = lag(&[settled(51, 51), settled(300, 60)]);
        assert!(own.fell_behind && own.late == 2 && own.cause().contains("--threads"));
        let connections = lag(&[settled(51, 1), settled(300, 2)]);
        assert!(connections.fell_behind && connections.cause().contains("--connections"));
        assert_eq!(Lag::of([].iter()), None);
    }
}
