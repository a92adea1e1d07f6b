//! Requests and answers counted by time, in a bounded number of slots however long a rush lasts and however often its buyers
//! try again.

use super::reply::AnswerKind;

/// Bucket width of the timeline of the first second.
pub const FIRST_SECOND_BUCKET_MS: u64 = 25;
const FIRST_SECOND_BUCKETS: usize = (1_000 / FIRST_SECOND_BUCKET_MS) as usize;
/// Slots of the whole rush begin with this width, and become ten times as wide as soon as there would be too many of them.
const FIRST_WIDTH_MS: u64 = 10;
const WIDER: usize = 10;
/// Ten times the buckets of a timeline: its buckets are then at least twice as wide as ten slots (see `bucket_width_ms`), so
/// that slots become wider without being divided by a bucket.
const SLOTS_MAX: u64 = 720;

/// What happened in a slot, by the time of the send and of the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slot {
    pub from_ms: u64,
    pub sent: u64,
    pub accepted: u64,
    pub sold_out: u64,
    pub refused: u64,
    pub failed: u64,
}

#[derive(Debug)]
pub struct Traffic {
    first_second: [Slot; FIRST_SECOND_BUCKETS],
    whole: Vec<Slot>,
    width_ms: u64,
    ended_us: Option<u64>,
}

impl Default for Traffic {
    fn default() -> Self {
        let first_second = std::array::from_fn(|n| Slot::at(n as u64 * FIRST_SECOND_BUCKET_MS));
        Self { first_second, whole: Vec::new(), width_ms: FIRST_WIDTH_MS, ended_us: None }
    }
}

impl Slot {
    fn at(from_ms: u64) -> Self {
        Self { from_ms, ..Self::default() }
    }

    fn add(&mut self, other: &Self) {
        let Self { from_ms: _, sent, accepted, sold_out, refused, failed } = *other;
        self.sent += sent;
        self.accepted += accepted;
        self.sold_out += sold_out;
        self.refused += refused;
        self.failed += failed;
    }
}

impl Traffic {
    /// Counts a request that has ended.
    pub fn add(&mut self, sent_us: u64, answered_us: u64, kind: AnswerKind) {
        self.ended_us = self.ended_us.max(Some(answered_us));
        self.count(sent_us, |slot| &mut slot.sent);
        self.count(
            answered_us,
            match kind {
                AnswerKind::Accepted => |slot| &mut slot.accepted,
                AnswerKind::SoldOut => |slot| &mut slot.sold_out,
                AnswerKind::Refused => |slot| &mut slot.refused,
                AnswerKind::Failed => |slot| &mut slot.failed,
            },
        );
    }

    fn count(&mut self, at_us: u64, field: fn(&mut Slot) -> &mut u64) {
        let at_ms = at_us / 1_000;
        let fine = usize::try_from(at_ms / FIRST_SECOND_BUCKET_MS).unwrap_or(usize::MAX);
        if let Some(slot) = self.first_second.get_mut(fine) {
            *field(slot) += 1;
        }
        *field(self.slot(at_ms)) += 1;
    }

    fn slot(&mut self, at_ms: u64) -> &mut Slot {
        while at_ms / self.width_ms >= SLOTS_MAX {
            self.widen();
        }
        let index = (at_ms / self.width_ms) as usize;
        for next in self.whole.len()..=index {
            self.whole.push(Slot::at(next as u64 * self.width_ms));
        }
        &mut self.whole[index]
    }

    fn widen(&mut self) {
        self.width_ms *= WIDER as u64;
        let joined = self.whole.chunks(WIDER).map(|slots| {
            let mut sum = Slot::at(slots[0].from_ms);
            slots.iter().for_each(|slot| sum.add(slot));
            sum
        });
        self.whole = joined.collect();
    }

    pub fn merge(&mut self, other: &Self) {
        self.ended_us = self.ended_us.max(other.ended_us);
        for (slot, add) in self.first_second.iter_mut().zip(&other.first_second) {
            slot.add(add);
        }
        // Wide slots are not spread over narrow ones.
        while self.width_ms < other.width_ms {
            self.widen();
        }
        for slot in &other.whole {
            self.slot(slot.from_ms).add(slot);
        }
    }

    /// When the last answer came, in microseconds; none if there was none.
    pub fn ended_us(&self) -> Option<u64> {
        self.ended_us
    }

    /// The first second in buckets, empty ones included.
    pub fn first_second(&self) -> &[Slot] {
        &self.first_second
    }

    /// The whole rush in slots, of which a bucket has one or several.
    pub fn whole(&self) -> &[Slot] {
        &self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::super::statistics::bucket_width_ms;
    use super::*;

    /// A long rush has no more slots than a short one, and its buckets are those of counting each request.
    #[test]
    fn slots_give_exact_buckets_however_long_the_rush() {
        for ended_ms in [5, 719, 720, 7_199, 7_200, 40_000, 3_600_000, 90_000_000] {
            let requests: Vec<u64> = (0..=1_000).map(|n| ended_ms * n / 1_000).collect();
            let (mut one, mut two) = (Traffic::default(), Traffic::default());
            for (n, at_ms) in requests.iter().enumerate() {
                let part = if n % 3 == 0 { &mut one } else { &mut two };
                part.add(at_ms * 1_000, at_ms * 1_000 + 999, AnswerKind::SoldOut);
            }
            one.merge(&two);
            assert_eq!(one.ended_us(), Some(ended_ms * 1_000 + 999));
            assert!(one.whole().len() as u64 <= SLOTS_MAX);
            let bucket_ms = bucket_width_ms(ended_ms);
            assert!(bucket_ms.is_multiple_of(one.width_ms), "{bucket_ms} ms, {} ms", one.width_ms);
            for from_ms in (0..=ended_ms).step_by(bucket_ms as usize) {
                let bucket = from_ms..from_ms + bucket_ms;
                let expected = requests.iter().filter(|at_ms| bucket.contains(*at_ms)).count() as u64;
                let slots = one.whole().iter().filter(|slot| bucket.contains(&slot.from_ms));
                let found = slots.fold((0, 0), |(sent, sold_out), slot| (sent + slot.sent, sold_out + slot.sold_out));
                assert_eq!(found, (expected, expected), "bucket from {from_ms} of {ended_ms} ms");
            }
            let expected = requests.iter().filter(|at_ms| **at_ms < 1_000).count() as u64;
            assert_eq!(one.first_second().iter().map(|slot| slot.sent).sum::<u64>(), expected);
        }
    }

    /// Nothing that a clock can say makes the slots too many.
    #[test]
    fn the_end_of_time_has_a_slot() {
        let mut traffic = Traffic::default();
        traffic.add(0, u64::MAX, AnswerKind::Failed);
        assert!(traffic.whole().len() as u64 <= SLOTS_MAX);
    }
}
