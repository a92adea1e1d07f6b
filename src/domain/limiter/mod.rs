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

/// An algorithm without a limit. Its parameters are kept to be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unlimited {
    kind: AlgorithmKind,
    parameters: Parameters,
}

impl Algorithm {
    pub fn new(kind: AlgorithmKind, parameters: &Parameters) -> Result<Self, WrongParameter> {
        let mut given = *parameters;
        if kind.parameter_set() == ParameterSet::Bucket {
            given.window_ms = given.window_ms.or(Some(SECOND_MS));
        }
        let [limit, window_ms, rate, capacity, lease_ms] = kind.check(&given)?;
        if limit == -1 {
            return Ok(Self::Unlimited(Unlimited { kind, parameters: given }));
        }
        let (window_us, period_us, lease_us) = (window_ms * 1000, window_ms * 1000, lease_ms * 1000);
        Ok(match kind {
            AlgorithmKind::FixedWindow => Self::FixedWindow(FixedWindow { limit, window_us }),
            AlgorithmKind::SlidingLog => Self::SlidingLog(SlidingLog { limit, window_us }),
            AlgorithmKind::SlidingCounter => Self::SlidingCounter(SlidingCounter { limit, window_us }),
            AlgorithmKind::TokenBucket => Self::TokenBucket(TokenBucket { capacity, rate, period_us }),
            AlgorithmKind::LeakyBucket => Self::LeakyBucket(LeakyBucket { capacity, rate, period_us }),
            AlgorithmKind::Concurrency => Self::Concurrency(Concurrency { limit, lease_us }),
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

    /// Returns the permits of a grant, as far as the state still has them: the same window, the same entries.
    pub fn give_back(&self, state: &mut State, now_us: i64, permits: i64, receipt: Receipt, lease: Uuid) {
        match (self, state) {
            (Self::FixedWindow(_), State::FixedWindow(state)) => state.give_back(permits, receipt),
            (Self::SlidingLog(_), State::SlidingLog(state)) => state.give_back(receipt),
            (Self::SlidingCounter(_), State::SlidingCounter(state)) => state.give_back(permits, receipt),
            (Self::TokenBucket(of), State::TokenBucket(state)) => of.give_back(state, now_us, permits, receipt),
            (Self::LeakyBucket(of), State::LeakyBucket(state)) => of.give_back(state, now_us, permits, receipt),
            (Self::Concurrency(_), State::Concurrency(state)) => drop(state.release(lease)),
            // Another algorithm's state has nothing of this grant.
            (_, _) => {}
        }
    }
}

/// A limiter's memory of one key.
#[derive(Debug, Clone, Default)]
pub enum State {
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
