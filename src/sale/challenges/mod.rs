//! Challenges that buyers solve before they buy, and the passes that they earn (protocol, rule 18).
//!
//! A challenge is sealed and kept by its buyer, so that it costs nothing here until it is answered. Answering spends it in Redis,
//! right or wrong. A pass is sealed, too, and names how many passes its buyer had spent: `reserve.lua` compares the number, and
//! a hold makes it another one.

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
use near::Near;
use pool::Pool;
use seal::{Seal, Solution};

pub use pool::PoolTerms;

/// The settings of challenges.
#[derive(Debug, Clone, Copy)]
pub struct ChallengeTerms {
    /// How long before a sale's start its challenges can be asked for.
    pub opens_before_ms: i64,
    pub challenge_ttl_ms: i64,
    pub pass_ttl_ms: i64,
    pub work_bits: WorkBits,
    /// Challenges that one buyer, and one address, may ask for in a window; and as many may be answered.
    pub buyer_limit: u32,
    pub address_limit: u32,
    pub window: Duration,
    pub pool: PoolTerms,
}

/// What the worker threads of an instance share.
pub struct Challenges {
    terms: ChallengeTerms,
    seal: Seal,
    pool: Pool,
    pressure: Arc<Pressure>,
    near: Mutex<Option<Near>>,
    asked: Mutex<Rate>,
    asking: CallerQuotas,
    answering: CallerQuotas,
}

/// A challenge, as its buyer gets it.
#[derive(Debug)]
pub struct Challenge {
    pub id: String,
    pub expires_at_ms: i64,
    pub question: Question,
    /// What passes: for tests of a service in development. A release has no such code.
    #[cfg(debug_assertions)]
    pub solution: Option<Answer>,
}

/// What is to be solved. Pictures are `data:` addresses.
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

/// A buyer's answer. Which kind of challenge it is for is seen when the challenge is opened.
#[derive(Debug, Clone)]
pub enum Answer {
    Text(String),
    Drag { x: f64, trail: Vec<slider::Sample> },
    Nonce(String),
}

/// A pass, sealed.
#[derive(Debug)]
pub struct EarnedPass {
    pub pass: String,
    pub expires_at_ms: i64,
}

/// Why there is no challenge, or no pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChallengeRefusal {
    UnknownSale,
    /// The sale's challenges can be asked for from this moment on.
    NotStarted {
        starts_at_ms: i64,
        opens_at_ms: i64,
    },
    Ended,
    /// The sale asks for no challenge, or for none of this kind.
    NoChallenge,
    /// The answer is wrong or too late, or the challenge is not this buyer's of this sale, or was answered before. Only the metrics
    /// say which, so that a guesser learns nothing.
    Failed,
    TooOften(CallerTooOften),
    /// No challenge of this kind is ready.
    PoolEmpty,
    /// Redis does not answer, or does not serve the sale now.
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
            near: Mutex::default(),
            asked: Mutex::new(Rate::new(Instant::now())),
            asking: quotas(),
            answering: quotas(),
        })
    }

    /// Draws ahead for the sales whose challenges can be asked for now or soon, and shows how many are ready. To be called every
    /// second or so: it looks at all sales only when one has changed, comes near, or has ended.
    pub fn prepare(&self, catalog: &Catalog) {
        let now_ms = catalog.clock.now_ms();
        let sales = catalog.live();
        let mut near = self.near.lock();
        let known = near.take().filter(|near| Arc::ptr_eq(&near.sales, &sales) && near.while_ms.contains(&now_ms));
        let wanted = near.insert(known.unwrap_or_else(|| Near::at(now_ms, self.terms.opens_before_ms, sales))).wanted;
        drop(near);
        self.pool.want(wanted);
        let (images, sliders) = self.pool.ready();
        for (kind, ready) in [(ChallengeKind::Image, images), (ChallengeKind::Slider, sliders)] {
            metrics::gauge!("seckill_challenges_ready", "kind" => kind.as_str()).set(ready as f64);
        }
    }

    /// Whether purchases wait so long that challenges are refused unread.
    pub fn gives_way(&self) -> bool {
        self.pressure.is_long_here(Instant::now())
    }

    /// The pass that a buyer shows for a purchase in this sale; `None` if it was not made for both.
    pub(super) fn open_pass(&self, sale: SaleId, user: &UserId, sealed: &str) -> Option<Pass> {
        self.seal.open_pass(sale, user, sealed)
    }

    /// Takes a question of this kind, with its solution; a proof of work has its prefix only when it is sealed.
    fn take(&self, kind: ChallengeKind) -> Option<(Question, Solution)> {
        let now = Instant::now();
        let asked_per_second = self.asked.lock().count(now);
        match kind {
            ChallengeKind::Image => {
                let drawn = self.pool.take_image()?;
                Some((Question::Image { image: drawn.image }, Solution::Image { text: drawn.text }))
            }
            ChallengeKind::Slider => {
                let drawn = self.pool.take_slider()?;
                let question = Question::Slider { image: drawn.image, piece: drawn.piece, piece_y: drawn.y };
                Some((question, Solution::Slider { x: drawn.x }))
            }
            ChallengeKind::Work => {
                let bits = self.terms.work_bits.at(asked_per_second, self.pressure.is_noticeable(now));
                // A hash has 256 bits; the settings allow far fewer.
                let difficulty = u8::try_from(bits).unwrap_or(u8::MAX);
                Some((Question::Work { prefix: String::new(), difficulty: bits }, Solution::Work { difficulty }))
            }
        }
    }
}
