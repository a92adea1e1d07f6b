//! Challenges that buyers solve before they buy, and the passes that they earn (protocol, rule 18).
//!
//! A challenge is sealed and kept by its buyer. It costs nothing here until the answer, right or wrong, spends it in Redis. A pass is
//! sealed, too, and has the number of passes that its buyer had spent. `reserve.lua` compares this number, and each hold raises it.

mod earn;
mod pool;
mod seal;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use seckill_captcha::slider;

use super::catalog::Catalog;
use pool::Pool;
use seal::{Seal, Solution};
use seckill_config as config;
use seckill_domain::captcha::{CaptchaKind, ChallengeKind, Pass, Rate, work_bits};
use seckill_domain::ids::{SaleId, UserId};
use seckill_domain::pressure::Pressure;
use seckill_domain::sale::SaleStatus;
use seckill_http::quota::{CallerQuotas, CallerTooOften};

/// Drawing begins this long before buyers can ask for a sale's challenges.
const DRAW_BEFORE_MS: i64 = 600_000;

/// Shared by the worker threads of an instance.
pub struct Challenges {
    settings: config::Captcha,
    seal: Seal,
    pool: Pool,
    pressure: Arc<Pressure>,
    asked: Mutex<Rate>,
    /// Of pictures. They are limited, because they can be guessed.
    pictures: Quotas,
    /// Of proofs of work: a buyer who has used up the pictures has this way left.
    work: Quotas,
}

/// How many challenges a caller may ask for, and answer.
struct Quotas {
    asking: CallerQuotas,
    answering: CallerQuotas,
}

#[derive(Debug)]
pub(crate) struct Challenge {
    pub(crate) id: String,
    pub(crate) expires_at_ms: i64,
    pub(crate) question: Question,
    /// An answer that passes, for tests. A release has no such code.
    #[cfg(debug_assertions)]
    pub(crate) solution: Option<Answer>,
}

/// Pictures are `data:` addresses.
#[derive(Debug)]
pub(crate) enum Question {
    Image { image: String },
    Slider { image: String, piece: String, piece_y: u16 },
    Work { prefix: String, difficulty: u32 },
}

impl Question {
    pub(crate) fn kind(&self) -> ChallengeKind {
        match self {
            Self::Image { .. } => ChallengeKind::Image,
            Self::Slider { .. } => ChallengeKind::Slider,
            Self::Work { .. } => ChallengeKind::Work,
        }
    }
}

/// The answer to a challenge of any kind.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Text(String),
    Drag { x: f64, trail: Vec<slider::Sample> },
    Nonce(String),
}

/// A sealed pass.
#[derive(Debug)]
pub(crate) struct EarnedPass {
    pub(crate) pass: String,
    pub(crate) expires_at_ms: i64,
}

/// Why there is no challenge, or no pass.
///
/// `NotStarted`: buyers can ask from `opens_at_ms` on. `NoChallenge`: the sale has none, or none of this kind. `Failed`: the answer is wrong
/// or late, or the challenge was answered, or is of another buyer or sale. Only metrics say which: a guesser learns nothing.
/// `PoolEmpty`: none of this kind is ready. `Unavailable`: Redis does not answer, or does not serve the sale now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChallengeRefusal {
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
    pub fn start(settings: config::Captcha, secret: &[u8; 32], pressure: &Arc<Pressure>) -> io::Result<Self> {
        let window = Duration::from_millis(settings.window_ms);
        let quotas = || CallerQuotas::new(settings.buyer_limit, settings.address_limit, window);
        let both = || Quotas { asking: quotas(), answering: quotas() };
        Ok(Self {
            seal: Seal::new(secret),
            pool: Pool::start(settings.images_max, settings.sliders_max, settings.draw_threads, pressure)?,
            pressure: Arc::clone(pressure),
            asked: Mutex::new(Rate::new(Instant::now())),
            pictures: both(),
            work: both(),
            settings,
        })
    }

    /// Draws ahead for sales that run or start soon, and shows how many challenges are ready. Call it about every second.
    pub fn prepare(&self, catalog: &Catalog) {
        let now_ms = catalog.clock.now_ms();
        let before_ms = self.settings.opens_before_ms.cast_signed() + DRAW_BEFORE_MS;
        let live = catalog.live();
        let near = live.iter().filter(|sale| {
            sale.status != SaleStatus::Closed && (sale.starts_at_ms - before_ms..sale.ends_at_ms).contains(&now_ms)
        });
        let (mut images, mut sliders) = (false, false);
        near.for_each(|sale| match sale.captcha {
            CaptchaKind::Image => images = true,
            CaptchaKind::Slider => sliders = true,
            CaptchaKind::None | CaptchaKind::Work => {}
        });
        self.pool.want(images, sliders);
        for kind in [ChallengeKind::Image, ChallengeKind::Slider] {
            let ready = self.pool.ready(kind) as f64;
            metrics::gauge!("seckill_challenges_ready", "kind" => kind.as_str()).set(ready);
        }
    }

    /// Whether purchases wait too long: then requests for challenges are refused unread.
    pub(crate) fn gives_way(&self) -> bool {
        self.pressure.is_long_here(Instant::now())
    }

    /// `None`: the pass was not made for this buyer and this sale.
    pub(super) fn open_pass(&self, sale: SaleId, user: &UserId, sealed: &str) -> Option<Pass> {
        self.seal.open_pass(sale, user, sealed)
    }

    fn quotas(&self, kind: ChallengeKind) -> &Quotas {
        match kind {
            ChallengeKind::Work => &self.work,
            ChallengeKind::Image | ChallengeKind::Slider => &self.pictures,
        }
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
        let bounds = self.settings.work_bits_min..=self.settings.work_bits_max;
        let bits = work_bits(bounds, asked_per_second, self.pressure.is_noticeable(now));
        // A hash has 256 bits, and the settings allow far fewer.
        let difficulty = u8::try_from(bits).unwrap_or(u8::MAX);
        Some((Question::Work { prefix: String::new(), difficulty: bits }, Solution::Work { difficulty }))
    }
}
