//! The arithmetic of the limiters. Each limiter is a pure model: it takes a state and a number of permits, and returns
//! a verdict and the next state. lua/limit_*.lua takes the same steps in Redis, and tests compare the two. The models
//! also limit by themselves while Redis cannot be asked.
//!
//! Time is a parameter, in microseconds. It never runs backwards: a state keeps the greatest time that it has seen.
//! Every number is an integer below 2^53, because Lua's numbers are exact up to there; the bounds in `parameters`
//! ensure this.

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

use parameters::{Given, LISTED_LIMIT, WINDOW_LIMIT};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use concurrency::{Concurrency, Leases};
use fixed_window::{Counted, FixedWindow};
use leaky_bucket::{LeakyBucket, Water};
pub use parameters::{ParameterBounds, Parameters, WrongParameter};
use sliding_counter::{SlidingCounter, SubWindows};
use sliding_log::{Log, SlidingLog};
pub use slot::{SlotKey, WrongSlot};
use token_bucket::{TokenBucket, Tokens};
pub use verdict::{Receipt, Verdict};

/// The kinds of limiters, by their names in the API, the command line, the database and the Redis keys.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    ToSchema,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
    strum::VariantNames,
)]
#[serde(rename_all = "kebab-case")]
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

/// Which parameters an algorithm takes.
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
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

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

    /// Whether a grant is a lease, which the caller gives back. Such a limiter may have room again at any moment; every
    /// other one has room again when time has passed.
    pub const fn grants_leases(self) -> bool {
        match self {
            Self::Concurrency => true,
            Self::FixedWindow | Self::SlidingLog | Self::SlidingCounter | Self::TokenBucket | Self::LeakyBucket => {
                false
            }
        }
    }
}

/// Runs a step of one algorithm on its state. The state of another algorithm is replaced by an empty one, as in Redis,
/// where each algorithm has a key of its own.
macro_rules! with_state {
    ($state:ident, $variant:ident, $own:ident => $step:expr) => {{
        let mut own = if let State::$variant(own) = std::mem::take($state) { own } else { Default::default() };
        let $own = &mut own;
        let verdict = $step;
        *$state = State::$variant(own);
        verdict
    }};
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
    /// A limit of -1: everything is granted, and nothing is counted.
    Unlimited(Unlimited),
}

/// An algorithm without a limit; it keeps its parameters so that they can be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unlimited {
    kind: AlgorithmKind,
    parameters: Parameters,
}

impl Algorithm {
    /// # Errors
    ///
    /// The parameter that is missing, out of bounds, or unknown to the algorithm.
    pub fn new(kind: AlgorithmKind, parameters: &Parameters) -> Result<Self, WrongParameter> {
        let given = Given { algorithm: kind.as_str(), parameters };
        let algorithm = match kind {
            AlgorithmKind::FixedWindow => {
                given.window(WINDOW_LIMIT)?.map(|(limit, ms)| Self::FixedWindow(FixedWindow::new(limit, ms)))
            }
            AlgorithmKind::SlidingLog => {
                given.window(LISTED_LIMIT)?.map(|(limit, ms)| Self::SlidingLog(SlidingLog::new(limit, ms)))
            }
            AlgorithmKind::SlidingCounter => {
                given.window(WINDOW_LIMIT)?.map(|(limit, ms)| Self::SlidingCounter(SlidingCounter::new(limit, ms)))
            }
            AlgorithmKind::TokenBucket => {
                let (capacity, rate, period_ms) = given.bucket()?;
                Some(Self::TokenBucket(TokenBucket::new(capacity, rate, period_ms)))
            }
            AlgorithmKind::LeakyBucket => {
                let (capacity, rate, period_ms) = given.bucket()?;
                Some(Self::LeakyBucket(LeakyBucket::new(capacity, rate, period_ms)))
            }
            AlgorithmKind::Concurrency => {
                given.leases()?.map(|(limit, lease_ms)| Self::Concurrency(Concurrency::new(limit, lease_ms)))
            }
        };
        Ok(algorithm.unwrap_or(Self::Unlimited(Unlimited { kind, parameters: *parameters })))
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

    /// Whether its grants are leases that Redis keeps.
    pub(crate) const fn keeps_leases(&self) -> bool {
        !self.is_unlimited() && self.kind().grants_leases()
    }

    /// The parameters; `Algorithm::new` makes the same algorithm of them.
    pub fn parameters(&self) -> Parameters {
        let none = Parameters::default();
        match *self {
            Self::FixedWindow(FixedWindow { limit, window_us })
            | Self::SlidingLog(SlidingLog { limit, window_us })
            | Self::SlidingCounter(SlidingCounter { limit, window_us }) => {
                Parameters { limit: Some(limit), window_ms: Some(window_us / 1000), ..none }
            }
            Self::TokenBucket(TokenBucket { capacity, rate, period_us })
            | Self::LeakyBucket(LeakyBucket { capacity, rate, period_us }) => {
                Parameters { capacity: Some(capacity), rate: Some(rate), window_ms: Some(period_us / 1000), ..none }
            }
            Self::Concurrency(Concurrency { limit, lease_us }) => {
                Parameters { limit: Some(limit), lease_ms: Some(lease_us / 1000), ..none }
            }
            Self::Unlimited(Unlimited { parameters, .. }) => parameters,
        }
    }

    /// The three numbers that lua/limit_*.lua takes; the first is `max_permits`.
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

    /// The most permits that one call may ask for: more can never be granted, so that asking for more is an error.
    pub const fn max_permits(&self) -> i64 {
        self.arguments()[0]
    }

    /// Takes permits if there is room for them at `now_us`. `lease` names a grant of a concurrency limiter.
    ///
    /// Returns `None` when `permits` is not 1 to `max_permits`; the state is then unchanged.
    pub fn take(&self, state: &mut State, now_us: i64, permits: i64, lease: Uuid) -> Option<Verdict> {
        if !(1..=self.max_permits()).contains(&permits) {
            return None;
        }
        Some(match self {
            Self::FixedWindow(of) => with_state!(state, FixedWindow, own => of.take(own, now_us, permits)),
            Self::SlidingLog(of) => with_state!(state, SlidingLog, own => of.take(own, now_us, permits)),
            Self::SlidingCounter(of) => with_state!(state, SlidingCounter, own => of.take(own, now_us, permits)),
            Self::TokenBucket(of) => with_state!(state, TokenBucket, own => of.take(own, now_us, permits)),
            Self::LeakyBucket(of) => with_state!(state, LeakyBucket, own => of.take(own, now_us, permits)),
            Self::Concurrency(of) => with_state!(state, Concurrency, own => of.take(own, now_us, permits, lease)),
            Self::Unlimited(_) => Verdict::UNLIMITED,
        })
    }

    /// Returns what a grant took, as far as the state still has it: the same window, the same entries.
    pub fn give_back(&self, state: &mut State, now_us: i64, permits: i64, receipt: Receipt, lease: Uuid) {
        match (self, state) {
            (Self::FixedWindow(_), State::FixedWindow(state)) => state.give_back(permits, receipt),
            (Self::SlidingLog(_), State::SlidingLog(state)) => state.give_back(receipt),
            (Self::SlidingCounter(_), State::SlidingCounter(state)) => state.give_back(permits, receipt),
            (Self::TokenBucket(of), State::TokenBucket(state)) => of.give_back(state, now_us, permits, receipt),
            (Self::LeakyBucket(of), State::LeakyBucket(state)) => of.give_back(state, now_us, permits, receipt),
            (Self::Concurrency(_), State::Concurrency(state)) => drop(state.release(lease)),
            // Another algorithm's state, or none, has nothing of this grant.
            (
                Self::FixedWindow(_)
                | Self::SlidingLog(_)
                | Self::SlidingCounter(_)
                | Self::TokenBucket(_)
                | Self::LeakyBucket(_)
                | Self::Concurrency(_)
                | Self::Unlimited(_),
                _,
            ) => {}
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
    /// Gives a lease back. Returns `false` when there is none of this id.
    pub fn release(&mut self, lease: Uuid) -> bool {
        match self {
            Self::Concurrency(leases) => leases.release(lease),
            Self::Untouched
            | Self::FixedWindow(_)
            | Self::SlidingLog(_)
            | Self::SlidingCounter(_)
            | Self::TokenBucket(_)
            | Self::LeakyBucket(_) => false,
        }
    }
}

/// Converts microseconds to milliseconds, rounded up, so that a caller who comes back then does not come too early.
const fn ms(us: i64) -> i64 {
    ceil_div(us, 1000)
}

const fn ceil_div(n: i64, by: i64) -> i64 {
    n.div_euclid(by) + (n.rem_euclid(by) != 0) as i64
}
