//! A buyer asks for a challenge, and earns a pass by solving it.

use std::sync::Arc;

use seckill_captcha::{picture, slider, work};

use super::seal::{OpenedChallenge, Solution};
use super::{Answer, Challenge, ChallengeRefusal, EarnedPass, Question};
use crate::sale::thread_state::ThreadState;
use seckill_domain::captcha::{CaptchaKind, ChallengeKind, Pass, Spending};
use seckill_domain::ids::{SaleId, UserId};
use seckill_domain::sale::{Sale, SalePhase};

impl ThreadState {
    /// Gives a buyer a challenge of the wished kind, or of the sale's own.
    pub(crate) async fn challenge(
        &self,
        sale: SaleId,
        user: &UserId,
        address: &str,
        wish: Option<ChallengeKind>,
    ) -> Result<Challenge, ChallengeRefusal> {
        let (sale, challenges) = (self.sale_with_challenges(sale).await?, &self.challenges);
        let kind = sale.captcha.offer(wish).ok_or(ChallengeRefusal::NoChallenge)?;
        // Before the limits: this refusal does not count.
        if !challenges.has(kind) {
            return Err(ChallengeRefusal::PoolEmpty);
        }
        challenges.quotas(kind).asking.count(user.as_str(), address).map_err(ChallengeRefusal::TooOften)?;
        // Another thread may have taken the last one. Then the request has counted.
        let (mut question, solution) = challenges.take(kind).ok_or(ChallengeRefusal::PoolEmpty)?;
        let expires_at_ms = self.catalog.clock.now_ms() + challenges.settings.challenge_ttl_ms.cast_signed();
        let sealed = challenges.seal.close_challenge((sale.id, user), &solution, expires_at_ms);
        let (id, serial) = sealed.ok_or(ChallengeRefusal::Unavailable)?;
        if let Question::Work { prefix, .. } = &mut question {
            *prefix = serial;
        }
        metrics::counter!("seckill_challenges_total", "kind" => kind.as_str()).increment(1);
        Ok(Challenge {
            id,
            expires_at_ms,
            question,
            #[cfg(debug_assertions)]
            solution: solution.right_answer(),
        })
    }

    /// Takes a buyer's answer. Right or wrong, it spends the challenge.
    pub(crate) async fn earn_pass(
        &self,
        sale: SaleId,
        user: &UserId,
        address: &str,
        challenge_id: &str,
        answer: &Answer,
    ) -> Result<EarnedPass, ChallengeRefusal> {
        let (sale, challenges) = (self.sale_with_challenges(sale).await?, &self.challenges);
        let challenge = challenges.seal.open_challenge(sale.id, user, challenge_id);
        // A forged challenge counts as a picture.
        let kind = challenge.as_ref().map_or(ChallengeKind::Image, |challenge| challenge.solution.kind());
        challenges.quotas(kind).answering.count(user.as_str(), address).map_err(ChallengeRefusal::TooOften)?;
        let Some(challenge) = challenge else {
            count_answer("unknown", "forged");
            return Err(ChallengeRefusal::Failed);
        };
        let is_right = challenge.is_solved_by(answer);
        let now_ms = self.catalog.clock.now_ms();
        // Spent also if the answer is wrong or the caller hangs up. A lost pass costs a new challenge.
        let spending =
            self.gate.spend_challenge(sale.sharding(), user, &challenge.serial, challenge.expires_at_ms, now_ms).await;
        let spending = spending.map_err(|error| {
            tracing::warn!(sale = %sale.id, %error, "challenge not spent");
            ChallengeRefusal::Unavailable
        })?;
        let kind = kind.as_str();
        let (now_ms, spent_before) = match spending {
            Spending::Spent { now_ms, passes_spent } if is_right => (now_ms, passes_spent),
            Spending::NotServing => return Err(ChallengeRefusal::Unavailable),
            Spending::Spent { .. } => return Err(failed(kind, "wrong")),
            Spending::SpentBefore => return Err(failed(kind, "repeated")),
            Spending::Expired => return Err(failed(kind, "expired")),
        };
        count_answer(kind, "right");
        let expires_at_ms = now_ms + challenges.settings.pass_ttl_ms.cast_signed();
        let pass = challenges.seal.close_pass(sale.id, user, &Pass { expires_at_ms, spent_before });
        Ok(EarnedPass { pass: pass.ok_or(ChallengeRefusal::Unavailable)?, expires_at_ms })
    }

    /// The sale, if it has challenges now.
    async fn sale_with_challenges(&self, sale: SaleId) -> Result<Arc<Sale>, ChallengeRefusal> {
        let found = self.catalog.sale(sale).await.map_err(|_| ChallengeRefusal::Unavailable)?;
        let sale = found.ok_or(ChallengeRefusal::UnknownSale)?;
        let now_ms = self.catalog.clock.now_ms();
        let opens_at_ms = sale.starts_at_ms - self.challenges.settings.opens_before_ms.cast_signed();
        if sale.phase_at(now_ms) == SalePhase::Ended {
            return Err(ChallengeRefusal::Ended);
        }
        if now_ms < opens_at_ms {
            return Err(ChallengeRefusal::NotStarted { starts_at_ms: sale.starts_at_ms, opens_at_ms });
        }
        if sale.captcha == CaptchaKind::None {
            return Err(ChallengeRefusal::NoChallenge);
        }
        Ok(sale)
    }
}

impl OpenedChallenge {
    fn is_solved_by(&self, answer: &Answer) -> bool {
        match (&self.solution, answer) {
            (Solution::Image { text }, Answer::Text(written)) => picture::judge(text, written),
            (Solution::Slider { x }, Answer::Drag { x: let_go_at, trail }) => slider::judge(*x, *let_go_at, trail),
            (Solution::Work { difficulty }, Answer::Nonce(nonce)) => {
                work::judge(&self.serial, nonce, u32::from(*difficulty))
            }
            // The answer to another kind of challenge.
            (Solution::Image { .. } | Solution::Slider { .. } | Solution::Work { .. }, _) => false,
        }
    }
}

#[cfg(debug_assertions)]
impl Solution {
    /// An answer that passes; none for a proof of work, which a test can solve.
    fn right_answer(&self) -> Option<Answer> {
        match self {
            Self::Image { text } => Some(Answer::Text(text.clone())),
            Self::Slider { x } => {
                Some(Answer::Drag { x: f64::from(*x), trail: slider::by_pointer(*x, &mut rand::rng()) })
            }
            Self::Work { .. } => None,
        }
    }
}

fn failed(kind: &'static str, result: &'static str) -> ChallengeRefusal {
    count_answer(kind, result);
    ChallengeRefusal::Failed
}

fn count_answer(kind: &'static str, result: &'static str) {
    metrics::counter!("seckill_challenge_answers_total", "kind" => kind, "result" => result).increment(1);
}
