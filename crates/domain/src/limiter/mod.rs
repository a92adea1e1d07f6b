//! The limiters as pure models: each takes a state and a number of permits, and returns a verdict and the next state. lua/limit_*.lua
//! takes the same steps in Redis, and tests compare the two. While Redis cannot be asked, the models limit by themselves.
//!
//! Time is a parameter, in microseconds. It never runs backwards: a state keeps the greatest time that it has seen. Every number is an
//! integer below 2^53, because Lua's numbers are exact up to there; the bounds in `parameters` ensure this.

mod concurrency;
mod fixed_window;
mod footprint;
mod leaky_bucket;
mod parameters;
mod sliding_counter;
mod sliding_log;
mod slot;
mod token_bucket;
mod verdict;

use parameters::SECOND_MS;
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray, VariantNames};
use utoipa::ToSchema;
use uuid::Uuid;

use concurrency::Leases;
use fixed_window::WindowCount;
use leaky_bucket::Water;
pub use parameters::{ParameterBounds, Parameters, WrongParameter};
use sliding_counter::SubWindows;
use sliding_log::Log;
pub use slot::SlotKey;
use token_bucket::Tokens;
pub use verdict::{Receipt, Verdict};

/// The kinds of limiters, by their names in the API, the command line, the database and the Redis keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[derive(EnumString, IntoStaticStr, VariantArray, VariantNames)]
#[strum(serialize_all = "kebab-case", const_into_str)]
#[strum(parse_err_ty = WrongParameter, parse_err_fn = unknown_algorithm)]
#[schema(as = LimiterKind)]
pub enum AlgorithmKind {
    FixedWindow,
    SlidingLog,
    SlidingCounter,
    TokenBucket,
    LeakyBucket,
    Concurrency,
}

fn unknown_algorithm(_: &str) -> WrongParameter {
    WrongParameter::UnknownAlgorithm
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterSet {
    /// `limit` and `window_ms`.
    Window,
    /// `capacity`, `rate` and `window_ms`.
    Bucket,
    /// `limit` and `lease_ms`.
    Leases,
}

impl AlgorithmKind {
    pub const ALL: &[Self] = <Self as VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    pub const fn parameter_set(self) -> ParameterSet {
        match self {
            Self::FixedWindow | Self::SlidingLog | Self::SlidingCounter => ParameterSet::Window,
            Self::TokenBucket | Self::LeakyBucket => ParameterSet::Bucket,
            Self::Concurrency => ParameterSet::Leases,
        }
    }

    /// Whether a grant is a lease, which the caller gives back. Such a limiter may have room again at any moment.
    pub const fn grants_leases(self) -> bool {
        matches!(self, Self::Concurrency)
    }
}

/// Runs a step of an algorithm on its state. Another algorithm's state becomes an empty one, as in Redis, where each has its own key.
macro_rules! with_state {
    ($state:ident, $variant:ident, $own:ident => $step:expr) => {{
        let mut own = if let State::$variant(own) = std::mem::take($state) { own } else { Default::default() };
        let $own = &mut own;
        let verdict = $step;
        *$state = State::$variant(own);
        verdict
    }};
}

/// An algorithm with its parameters, which are within their bounds. A limit of -1 grants everything, and counts nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Algorithm {
    kind: AlgorithmKind,
    parameters: Parameters,
    /// Limit and window; capacity, rate and period; or limit and lease. Times are in microseconds.
    numbers: [i64; 3],
}

impl Algorithm {
    pub fn new(kind: AlgorithmKind, parameters: &Parameters) -> Result<Self, WrongParameter> {
        let mut parameters = *parameters;
        if kind.parameter_set() == ParameterSet::Bucket {
            parameters.window_ms = parameters.window_ms.or(Some(SECOND_MS));
        }
        let [limit, window_ms, rate, capacity, lease_ms] = kind.check(&parameters)?;
        let numbers = match kind.parameter_set() {
            ParameterSet::Window => [limit, window_ms * 1000, 0],
            ParameterSet::Bucket => [capacity, rate, window_ms * 1000],
            ParameterSet::Leases => [limit, lease_ms * 1000, 0],
        };
        Ok(Self { kind, parameters, numbers })
    }

    pub const fn kind(&self) -> AlgorithmKind {
        self.kind
    }

    pub const fn is_unlimited(&self) -> bool {
        self.numbers[0] == -1
    }

    /// Whether its grants are leases that Redis keeps.
    pub const fn keeps_leases(&self) -> bool {
        !self.is_unlimited() && self.kind.grants_leases()
    }

    pub const fn parameters(&self) -> Parameters {
        self.parameters
    }

    /// The three numbers that lua/limit_*.lua takes; the first is `max_permits`.
    pub const fn arguments(&self) -> [i64; 3] {
        if self.is_unlimited() { [u32::MAX as i64, 0, 0] } else { self.numbers }
    }

    /// The most permits of a call: asking for more is an error, because it could never be granted.
    pub const fn max_permits(&self) -> i64 {
        self.arguments()[0]
    }

    /// Takes permits if there is room for them at `now_us`. `lease` names a grant of a concurrency limiter. Returns `None`, and changes
    /// nothing, when `permits` is not 1 to `max_permits`.
    pub fn take(&self, state: &mut State, now_us: i64, permits: i64, lease: Uuid) -> Option<Verdict> {
        if !(1..=self.max_permits()).contains(&permits) {
            return None;
        }
        if self.is_unlimited() {
            return Some(Verdict::UNLIMITED);
        }
        let window = Window { limit: self.numbers[0], window_us: self.numbers[1] };
        let bucket = self.bucket();
        Some(match self.kind {
            AlgorithmKind::FixedWindow => with_state!(state, FixedWindow, own => own.take(window, now_us, permits)),
            AlgorithmKind::SlidingLog => with_state!(state, SlidingLog, own => own.take(window, now_us, permits)),
            AlgorithmKind::SlidingCounter => {
                with_state!(state, SlidingCounter, own => own.take(window, now_us, permits))
            }
            AlgorithmKind::TokenBucket => {
                with_state!(state, TokenBucket, own => bucket.take_tokens(own, now_us, permits))
            }
            AlgorithmKind::LeakyBucket => {
                with_state!(state, LeakyBucket, own => bucket.take_water(own, now_us, permits))
            }
            AlgorithmKind::Concurrency => {
                with_state!(state, Concurrency, own => own.take(window, now_us, permits, lease))
            }
        })
    }

    /// Returns the permits of a grant, as far as the state still has them: the same window, the same entries.
    pub fn give_back(&self, state: &mut State, now_us: i64, permits: i64, receipt: Receipt, lease: Uuid) {
        match (self.kind, state) {
            _ if self.is_unlimited() => {}
            (AlgorithmKind::FixedWindow, State::FixedWindow(state)) => state.give_back(permits, receipt),
            (AlgorithmKind::SlidingLog, State::SlidingLog(state)) => state.give_back(receipt),
            (AlgorithmKind::SlidingCounter, State::SlidingCounter(state)) => state.give_back(permits, receipt),
            (AlgorithmKind::TokenBucket, State::TokenBucket(state)) => {
                self.bucket().give_back_tokens(state, now_us, permits, receipt);
            }
            (AlgorithmKind::LeakyBucket, State::LeakyBucket(state)) => {
                self.bucket().give_back_water(state, now_us, permits, receipt);
            }
            (AlgorithmKind::Concurrency, State::Concurrency(state)) => drop(state.release(lease)),
            // Another algorithm's state has nothing of this grant.
            (_, _) => {}
        }
    }

    const fn bucket(&self) -> Bucket {
        let [capacity, rate, period_us] = self.numbers;
        Bucket { capacity, rate, period_us }
    }
}

#[cfg(test)]
impl Algorithm {
    /// With this limit, or this rate and capacity. The period of a bucket is at most an hour.
    pub(crate) fn of(kind: AlgorithmKind, threshold: i64, ms: i64) -> Self {
        let (threshold, none) = (Some(threshold), Parameters::default());
        let parameters = match kind.parameter_set() {
            ParameterSet::Window => Parameters { limit: threshold, window_ms: Some(ms), ..none },
            ParameterSet::Bucket => {
                Parameters { rate: threshold, capacity: threshold, window_ms: Some(ms.min(3_600_000)), ..none }
            }
            ParameterSet::Leases => Parameters { limit: threshold, lease_ms: Some(ms), ..none },
        };
        Self::new(kind, &parameters).unwrap()
    }
}

/// The numbers of a limiter with windows or leases.
#[derive(Clone, Copy)]
struct Window {
    limit: i64,
    window_us: i64,
}

/// The numbers of a bucket. Levels are counted in permits times the period in microseconds, so that one microsecond changes a level by
/// exactly `rate`, and no fraction is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bucket {
    capacity: i64,
    rate: i64,
    period_us: i64,
}

impl Bucket {
    const fn full(&self) -> i64 {
        self.capacity * self.period_us
    }

    /// The rest of a grant at `at_us`: since then, a part has drained, or would have spilled over.
    fn left_of(&self, permits: i64, receipt: Receipt, at_us: i64) -> Option<i64> {
        let (taken, passed_us) = (permits * self.period_us, at_us - receipt.mark);
        // Comparing times first keeps the product from overflowing.
        (passed_us < ceil_div(receipt.detail + taken, self.rate))
            .then(|| taken - (passed_us * self.rate - receipt.detail).max(0))
    }
}

/// A limiter's memory of one key.
#[derive(Debug, Clone, Default)]
pub enum State {
    #[default]
    Untouched,
    FixedWindow(WindowCount),
    SlidingLog(Log),
    SlidingCounter(SubWindows),
    TokenBucket(Option<Tokens>),
    LeakyBucket(Water),
    Concurrency(Leases),
}

impl State {
    /// Gives a lease back. Returns `false` when there is none of this id.
    pub fn release(&mut self, lease: Uuid) -> bool {
        match self {
            Self::Concurrency(leases) => leases.release(lease),
            _ => false,
        }
    }
}

/// Microseconds in milliseconds, rounded up, so that a caller does not come back too early.
const fn ms(us: i64) -> i64 {
    ceil_div(us, 1000)
}

const fn ceil_div(n: i64, by: i64) -> i64 {
    n.div_euclid(by) + (n.rem_euclid(by) != 0) as i64
}
