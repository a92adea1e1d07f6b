//! Challenges that buyers solve before they buy, and the passes that they earn (protocol, rule 18).
//!
//! A challenge is sealed and kept by its buyer. It costs nothing here until the answer, right or wrong, spends it in Redis. A pass is
//! sealed, too, and has the number of passes that its buyer had spent. `reserve.lua` compares this number, and each hold raises it.

mod earn;
mod near;
mod pool;
mod seal;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use seckill_captcha::slider;

use super::catalog::Catalog;
use super::quota::{CallerQuotas, CallerTooOften};
use crate::domain::captcha::{ChallengeKind, Pass, Rate, WorkBits};
use crate::domain::ids::{SaleId, UserId};
use crate::domain::pressure::Pressure;
use near::wanted_at;
use pool::Pool;
use seal::{Seal, Solution};

pub use pool::PoolTerms;

/// The settings of challenges.
#[derive(Debug, Clone, Copy)]
pub struct ChallengeTerms {
    /// How long before a sale's start buyers can ask for its challenges.
    pub opens_before_ms: i64,
    pub challenge_ttl_ms: i64,
    pub pass_ttl_ms: i64,
    pub work_bits: WorkBits,
    /// Challenges that one buyer, and one address, may ask for in a window, and may answer.
    pub buyer_limit: u32,
    pub address_limit: u32,
    pub window: Duration,
    pub pool: PoolTerms,
}

/// Shared by the worker threads of an instance.
pub struct Challenges {
    terms: ChallengeTerms,
    seal: Seal,
    pool: Pool,
    pressure: Arc<Pressure>,
    asked: Mutex<Rate>,
    asking: CallerQuotas,
    answering: CallerQuotas,
}

#[derive(Debug)]
pub struct Challenge {
    pub id: String,
    pub expires_at_ms: i64,
    pub question: Question,
    /// An answer that passes, for tests. A release has no such code.
    #[cfg(debug_assertions)]
    pub solution: Option<Answer>,
}

/// Pictures are `data:` addresses.
#[derive(Debug)]
pub enum Question {
    Image { image: String },
    Slider { image: String, piece: String, piece_y: u16 },
    Work { prefix: String, difficulty: u32 },
}

impl Question {
    pub fn kind(&self) -> ChallengeKind {
        match self {
            Self::Image { .. } => ChallengeKind::Image,
            Self::Slider { .. } => ChallengeKind::Slider,
            Self::Work { .. } => ChallengeKind::Work,
        }
    }
}

/// The answer to a challenge of any kind.
#[derive(Debug, Clone)]
pub enum Answer {
    Text(String),
    Drag { x: f64, trail: Vec<slider::Sample> },
    Nonce(String),
}

/// A sealed pass.
#[derive(Debug)]
pub struct EarnedPass {
    pub pass: String,
    pub expires_at_ms: i64,
}

/// Why there is no challenge, or no pass.
///
/// `NotStarted`: buyers can ask from `opens_at_ms` on. `NoChallenge`: the sale has none, or none of this kind. `Failed`: the answer is wrong
/// or late, or the challenge was answered, or is of another buyer or sale. Only metrics say which: a guesser learns nothing.
/// `PoolEmpty`: none of this kind is ready. `Unavailable`: Redis does not answer, or does not serve the sale now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChallengeRefusal {
    UnknownSale,
    NotStarted { starts_at_ms: i64, opens_at_ms: i64 },
    Ended,
    NoChallenge,
    Failed,
    TooOften(CallerTooOften),
    PoolEmpty,
    Unavailable,
}

impl Challenges {
    /// Starts the threads that draw. `secret` is the same at all instances.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(terms: ChallengeTerms, secret: &[u8; 32], pressure: &Arc<Pressure>) -> io::Result<Self> {
        let quotas = || CallerQuotas::new(terms.buyer_limit, terms.address_limit, terms.window);
        Ok(Self {
            terms,
            seal: Seal::new(secret),
            pool: Pool::start(terms.pool, pressure)?,
            pressure: Arc::clone(pressure),
            asked: Mutex::new(Rate::new(Instant::now())),
            asking: quotas(),
            answering: quotas(),
        })
    }

    /// Draws ahead for sales that run or start soon, and shows how many challenges are ready. Call it about every second.
    pub fn prepare(&self, catalog: &Catalog) {
        self.pool.want(wanted_at(catalog.clock.now_ms(), self.terms.opens_before_ms, catalog.live().iter()));
        for kind in [ChallengeKind::Image, ChallengeKind::Slider] {
            let ready = self.pool.ready(kind) as f64;
            metrics::gauge!("seckill_challenges_ready", "kind" => kind.as_str()).set(ready);
        }
    }

    /// Whether purchases wait too long: then requests for challenges are refused unread.
    pub fn gives_way(&self) -> bool {
        self.pressure.is_long_here(Instant::now())
    }

    /// `None`: the pass was not made for this buyer and this sale.
    pub(super) fn open_pass(&self, sale: SaleId, user: &UserId, sealed: &str) -> Option<Pass> {
        self.seal.open_pass(sale, user, sealed)
    }

    /// Whether a challenge of this kind is ready.
    fn has(&self, kind: ChallengeKind) -> bool {
        kind == ChallengeKind::Work || self.pool.ready(kind) > 0
    }

    /// Takes a question of this kind, with its solution. A proof of work gets its prefix when it is sealed.
    fn take(&self, kind: ChallengeKind) -> Option<(Question, Solution)> {
        let now = Instant::now();
        let asked_per_second = self.asked.lock().count(now);
        if kind != ChallengeKind::Work {
            return self.pool.take(kind);
        }
        let bits = self.terms.work_bits.at(asked_per_second, self.pressure.is_noticeable(now));
        // A hash has 256 bits, and the settings allow far fewer.
        let difficulty = u8::try_from(bits).unwrap_or(u8::MAX);
        Some((Question::Work { prefix: String::new(), difficulty: bits }, Solution::Work { difficulty }))
    }
}
