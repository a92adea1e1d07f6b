//! The arithmetic of the limiters. Each of them is here as a pure model: state in, permits asked for, verdict and state
//! out. The same steps are taken in Redis by lua/limit_*.lua, and the two are tested against each other; the models
//! also limit by themselves, where Redis cannot be asked.
//!
//! Time is in microseconds and a parameter. It never runs backwards: the state keeps the greatest time it has seen.
//! Everything is an integer below 2^53, because that is what Lua's numbers hold exactly; the bounds below see to it.

mod concurrency;
mod fixed_window;
mod leaky_bucket;
mod parameters;
mod sliding_counter;
mod sliding_log;
mod slot;
mod token_bucket;

use std::str::FromStr;

use parameters::{BUCKET, Given, LEASE_MS, LISTED_LIMIT, PERIOD_MS, SECOND_MS, WINDOW_LIMIT, WINDOW_MS};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

pub use concurrency::{Concurrency, Leases};
pub use fixed_window::{Counted, FixedWindow};
pub use leaky_bucket::{LeakyBucket, Water};
pub use parameters::{Parameters, WrongParameter};
pub use sliding_counter::{SlidingCounter, SubWindows};
pub use sliding_log::{Log, SlidingLog};
pub use slot::{SlotKey, WrongSlot};
pub use token_bucket::{TokenBucket, Tokens};

/// The kinds of limiters, by the names that the outside calls them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = LimiterKind)]
pub enum AlgorithmKind {
    FixedWindow,
    SlidingLog,
    SlidingCounter,
    TokenBucket,
    LeakyBucket,
    Concurrency,
}

impl AlgorithmKind {
    pub const ALL: [Self; 6] = [
        Self::FixedWindow,
        Self::SlidingLog,
        Self::SlidingCounter,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Concurrency,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed-window",
            Self::SlidingLog => "sliding-log",
            Self::SlidingCounter => "sliding-counter",
            Self::TokenBucket => "token-bucket",
            Self::LeakyBucket => "leaky-bucket",
            Self::Concurrency => "concurrency",
        }
    }
}

impl FromStr for AlgorithmKind {
    type Err = WrongParameter;

    fn from_str(name: &str) -> Result<Self, WrongParameter> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or(WrongParameter::UnknownAlgorithm)
    }
}

/// An algorithm with its parameters, which are within their bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    FixedWindow(FixedWindow),
    SlidingLog(SlidingLog),
    SlidingCounter(SlidingCounter),
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
    Concurrency(Concurrency),
    /// A limit of -1: everything is granted, and nothing counted.
    Unlimited(Unlimited),
}

/// What was configured as unlimited, so that it can be shown as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unlimited {
    kind: AlgorithmKind,
    span_ms: i64,
}

impl Algorithm {
    pub fn new(kind: AlgorithmKind, given: &Parameters) -> Result<Self, WrongParameter> {
        let of = Given { algorithm: kind.as_str(), given };
        Ok(match kind {
            AlgorithmKind::FixedWindow | AlgorithmKind::SlidingLog | AlgorithmKind::SlidingCounter => {
                of.only(&["limit", "window_ms"])?;
                let window_ms = of.within("window_ms", given.window_ms, WINDOW_MS)?;
                let listed = kind == AlgorithmKind::SlidingLog;
                match of.limit(if listed { LISTED_LIMIT } else { WINDOW_LIMIT })? {
                    None => Self::Unlimited(Unlimited { kind, span_ms: window_ms }),
                    Some(limit) if listed => Self::SlidingLog(SlidingLog::new(limit, window_ms)),
                    Some(limit) if kind == AlgorithmKind::FixedWindow => {
                        Self::FixedWindow(FixedWindow::new(limit, window_ms))
                    }
                    Some(limit) => Self::SlidingCounter(SlidingCounter::new(limit, window_ms)),
                }
            }
            AlgorithmKind::TokenBucket | AlgorithmKind::LeakyBucket => {
                of.only(&["capacity", "rate", "window_ms"])?;
                let capacity = of.within("capacity", given.capacity, BUCKET)?;
                let rate = of.within("rate", given.rate, BUCKET)?;
                let period_ms = of.within("window_ms", given.window_ms.or(Some(SECOND_MS)), PERIOD_MS)?;
                match kind {
                    AlgorithmKind::TokenBucket => Self::TokenBucket(TokenBucket::new(capacity, rate, period_ms)),
                    _ => Self::LeakyBucket(LeakyBucket::new(capacity, rate, period_ms)),
                }
            }
            AlgorithmKind::Concurrency => {
                of.only(&["limit", "lease_ms"])?;
                let lease_ms = of.within("lease_ms", given.lease_ms, LEASE_MS)?;
                match of.limit(LISTED_LIMIT)? {
                    None => Self::Unlimited(Unlimited { kind, span_ms: lease_ms }),
                    Some(limit) => Self::Concurrency(Concurrency::new(limit, lease_ms)),
                }
            }
        })
    }

    pub const fn kind(&self) -> AlgorithmKind {
        match self {
            Self::FixedWindow(_) => AlgorithmKind::FixedWindow,
            Self::SlidingLog(_) => AlgorithmKind::SlidingLog,
            Self::SlidingCounter(_) => AlgorithmKind::SlidingCounter,
            Self::TokenBucket(_) => AlgorithmKind::TokenBucket,
            Self::LeakyBucket(_) => AlgorithmKind::LeakyBucket,
            Self::Concurrency(_) => AlgorithmKind::Concurrency,
            Self::Unlimited(unlimited) => unlimited.kind,
        }
    }

    pub const fn is_unlimited(&self) -> bool {
        matches!(self, Self::Unlimited(_))
    }

    /// The parameters as they would be written down; `Algorithm::new` makes the same algorithm of them.
    pub fn parameters(&self) -> Parameters {
        let none = Parameters::default();
        let window = |limit, window_ms| Parameters { limit: Some(limit), window_ms: Some(window_ms), ..none };
        let bucket = |[capacity, rate, period_us]: [i64; 3]| Parameters {
            capacity: Some(capacity),
            rate: Some(rate),
            window_ms: Some(period_us / 1000),
            ..none
        };
        let leases = |limit, lease_ms| Parameters { limit: Some(limit), lease_ms: Some(lease_ms), ..none };
        let [limit, span_us, _] = self.arguments();
        match self {
            Self::TokenBucket(_) | Self::LeakyBucket(_) => bucket(self.arguments()),
            Self::Concurrency(_) => leases(limit, span_us / 1000),
            Self::Unlimited(Unlimited { kind: AlgorithmKind::Concurrency, span_ms }) => leases(-1, *span_ms),
            Self::Unlimited(Unlimited { span_ms, .. }) => window(-1, *span_ms),
            _ => window(limit, span_us / 1000),
        }
    }

    /// The three numbers that lua/limit_*.lua take; the first is what `max_permits` says.
    pub(crate) const fn arguments(&self) -> [i64; 3] {
        match self {
            Self::FixedWindow(FixedWindow { limit, window_us })
            | Self::SlidingLog(SlidingLog { limit, window_us })
            | Self::SlidingCounter(SlidingCounter { limit, window_us }) => [*limit, *window_us, 0],
            Self::TokenBucket(TokenBucket { capacity, rate, period_us })
            | Self::LeakyBucket(LeakyBucket { capacity, rate, period_us }) => [*capacity, *rate, *period_us],
            Self::Concurrency(Concurrency { limit, lease_us }) => [*limit, *lease_us, 0],
            Self::Unlimited(_) => [u32::MAX as i64, 0, 0],
        }
    }

    /// The most that one call may ask for: more could never be granted, and is a mistake of the caller's.
    pub const fn max_permits(&self) -> i64 {
        self.arguments()[0]
    }

    /// Takes permits if they are to be had, at `now_us`; what holds a concurrency limiter's is named by `lease`.
    /// `None`: no such number of permits can be asked for, and nothing was looked at.
    pub fn take(&self, state: &mut State, now_us: i64, permits: i64, lease: Uuid) -> Option<Verdict> {
        if !(1..=self.max_permits()).contains(&permits) {
            return None;
        }
        state.belong_to(self);
        Some(match (self, state) {
            (Self::FixedWindow(limiter), State::FixedWindow(state)) => limiter.take(state, now_us, permits),
            (Self::SlidingLog(limiter), State::SlidingLog(state)) => limiter.take(state, now_us, permits),
            (Self::SlidingCounter(limiter), State::SlidingCounter(state)) => limiter.take(state, now_us, permits),
            (Self::TokenBucket(limiter), State::TokenBucket(state)) => limiter.take(state, now_us, permits),
            (Self::LeakyBucket(limiter), State::LeakyBucket(state)) => limiter.take(state, now_us, permits),
            (Self::Concurrency(limiter), State::Concurrency(state)) => limiter.take(state, now_us, permits, lease),
            _ => Verdict::UNLIMITED,
        })
    }

    /// Returns what a grant took, as far as it is still there to be returned: to the same window, the same entries.
    pub fn give_back(&self, state: &mut State, now_us: i64, permits: i64, receipt: Receipt, lease: Uuid) {
        match (self, state) {
            (Self::FixedWindow(_), State::FixedWindow(state)) => state.give_back(permits, receipt),
            (Self::SlidingLog(_), State::SlidingLog(state)) => state.give_back(permits, receipt),
            (Self::SlidingCounter(_), State::SlidingCounter(state)) => state.give_back(permits, receipt),
            (Self::TokenBucket(limiter), State::TokenBucket(state)) => {
                limiter.give_back(state, now_us, permits, receipt);
            }
            (Self::LeakyBucket(limiter), State::LeakyBucket(state)) => {
                limiter.give_back(state, now_us, permits, receipt);
            }
            (Self::Concurrency(_), State::Concurrency(state)) => state.release(lease),
            _ => {}
        }
    }
}

/// What a limiter remembers of one key.
#[derive(Debug, Clone, Default)]
pub enum State {
    /// Nothing was taken yet.
    #[default]
    Untouched,
    FixedWindow(Counted),
    SlidingLog(Log),
    SlidingCounter(SubWindows),
    TokenBucket(Option<Tokens>),
    LeakyBucket(Water),
    Concurrency(Leases),
}

impl State {
    /// Another algorithm begins afresh, as it does in Redis, where it has a key of its own.
    fn belong_to(&mut self, algorithm: &Algorithm) {
        let fits = matches!(
            (&*self, algorithm),
            (Self::FixedWindow(_), Algorithm::FixedWindow(_))
                | (Self::SlidingLog(_), Algorithm::SlidingLog(_))
                | (Self::SlidingCounter(_), Algorithm::SlidingCounter(_))
                | (Self::TokenBucket(_), Algorithm::TokenBucket(_))
                | (Self::LeakyBucket(_), Algorithm::LeakyBucket(_))
                | (Self::Concurrency(_), Algorithm::Concurrency(_))
        );
        if fits {
            return;
        }
        *self = match algorithm {
            Algorithm::FixedWindow(_) => Self::FixedWindow(Counted::default()),
            Algorithm::SlidingLog(_) => Self::SlidingLog(Log::default()),
            Algorithm::SlidingCounter(_) => Self::SlidingCounter(SubWindows::default()),
            Algorithm::TokenBucket(_) => Self::TokenBucket(None),
            Algorithm::LeakyBucket(_) => Self::LeakyBucket(Water::default()),
            Algorithm::Concurrency(_) => Self::Concurrency(Leases::default()),
            Algorithm::Unlimited(_) => Self::Untouched,
        };
    }
}

/// What a limiter says to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub granted: bool,
    /// What is left after this call; -1 where there is no limit.
    pub remaining: i64,
    /// When the same would be granted if nobody else came, rounded up; 0 when it was granted.
    pub retry_after_ms: i64,
    /// When everything is to be had again if nobody else comes, rounded up.
    pub reset_ms: i64,
    /// How long a granted caller waits so that the outflow is even; of leaky buckets only.
    pub delay_ms: i64,
    /// The time that the call was judged at: the server's, and never less than at an earlier grant.
    pub at_us: i64,
    pub receipt: Receipt,
}

/// Where a grant's permits were taken from, so that they can be given back to the same place. What the two numbers
/// mean is the limiter's own business.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Receipt {
    pub(crate) mark: i64,
    pub(crate) detail: i64,
}

impl Verdict {
    pub const UNLIMITED: Self = Self {
        granted: true,
        remaining: -1,
        retry_after_ms: 0,
        reset_ms: 0,
        delay_ms: 0,
        at_us: 0,
        receipt: Receipt { mark: 0, detail: 0 },
    };

    const fn granted(at_us: i64, remaining: i64, reset_us: i64, mark: i64, detail: i64) -> Self {
        let receipt = Receipt { mark, detail };
        Self { granted: true, remaining, retry_after_ms: 0, reset_ms: ms(reset_us), delay_ms: 0, at_us, receipt }
    }

    const fn refused(at_us: i64, remaining: i64, retry_us: i64, reset_us: i64) -> Self {
        Self {
            granted: false,
            remaining,
            retry_after_ms: ms(retry_us),
            reset_ms: ms(reset_us),
            delay_ms: 0,
            at_us,
            receipt: Receipt { mark: 0, detail: 0 },
        }
    }
}

/// Milliseconds, rounded up: who comes back then does not come too early.
const fn ms(us: i64) -> i64 {
    ceil_div(us, 1000)
}

const fn ceil_div(n: i64, by: i64) -> i64 {
    n.div_euclid(by) + (n.rem_euclid(by) != 0) as i64
}
