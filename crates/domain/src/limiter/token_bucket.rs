//! A bucket of `capacity` tokens, refilled by `rate` tokens a period: bursts up to the capacity, and the rate on average.

use super::{Bucket, Receipt, Verdict, ceil_div};

/// The level of a bucket at one time.
#[derive(Debug, Clone, Copy)]
pub struct Tokens {
    at_us: i64,
    level: i64,
    of: Bucket,
}

impl Bucket {
    fn filled(&self, level: i64, elapsed_us: i64) -> i64 {
        // Comparing times first keeps the product from overflowing after a long pause.
        if elapsed_us >= self.full_after(level) { self.full() } else { level + elapsed_us * self.rate }
    }

    const fn full_after(&self, level: i64) -> i64 {
        ceil_div(self.full() - level, self.rate)
    }

    /// The level at `at_us`. A changed policy carries the tokens over: they grew at the old rate until now, up to the new capacity. A larger
    /// bucket does not start full.
    fn tokens_at(&self, state: Option<Tokens>, at_us: i64) -> i64 {
        let Some(Tokens { at_us: since, level, of }) = state else { return self.full() };
        let level = of.filled(level, at_us - since);
        if of == *self {
            return level;
        }
        let carried = i128::from(level) * i128::from(self.period_us) / i128::from(of.period_us);
        i64::try_from(carried).map_or(self.full(), |carried| carried.min(self.full()))
    }

    pub(super) fn take_tokens(&self, state: &mut Option<Tokens>, now_us: i64, permits: i64) -> Verdict {
        let at = now_us.max(state.map_or(0, |state| state.at_us));
        let behind = at - now_us;
        let level = self.tokens_at(*state, at);
        let missing = permits * self.period_us - level;
        if missing > 0 {
            // The first call under a changed policy stores the level, so that the new rate counts from now on.
            if state.is_some_and(|state| state.of != *self) {
                *state = Some(Tokens { at_us: at, level, of: *self });
            }
            let (retry, reset) = (ceil_div(missing, self.rate), self.full_after(level));
            return Verdict::refused(at, level / self.period_us, behind + retry, behind + reset);
        }
        let left = level - permits * self.period_us;
        *state = Some(Tokens { at_us: at, level: left, of: *self });
        let reset = behind + self.full_after(left);
        Verdict::granted(at, left / self.period_us, reset, at, self.full() - level)
    }

    /// Puts the tokens back, but not the part that would have spilled over since the grant.
    pub(super) fn give_back_tokens(&self, state: &mut Option<Tokens>, now_us: i64, permits: i64, receipt: Receipt) {
        let Some(tokens) = state.as_mut().filter(|tokens| tokens.of == *self) else { return };
        let at_us = now_us.max(tokens.at_us);
        if let Some(left) = self.left_of(permits, receipt, at_us) {
            let level = (self.filled(tokens.level, at_us - tokens.at_us) + left).min(self.full());
            *tokens = Tokens { at_us, level, ..*tokens };
        }
    }
}
