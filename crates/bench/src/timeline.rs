//! What a crowd got over time.

use serde_json::{Value, json};

use crate::arrivals::{SLOT_MS, Slot};

/// How long answers took, in ms. Not a number if there were none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Waits {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub longest_ms: f64,
}

impl Waits {
    pub fn of(mut waits_us: Vec<u32>) -> Self {
        waits_us.sort_unstable();
        let last = waits_us.len().saturating_sub(1);
        let at = |place: usize| waits_us.get(place.min(last)).map_or(f64::NAN, |us| f64::from(*us) / 1000.0);
        Self { p50_ms: at(waits_us.len() / 2), p99_ms: at(waits_us.len() * 99 / 100), longest_ms: at(last) }
    }

    pub fn json(&self) -> Value {
        json!({ "p50_ms": self.p50_ms, "p99_ms": self.p99_ms, "longest_ms": self.longest_ms })
    }
}

/// The answers of some time.
pub struct Bucket {
    pub from_s: f64,
    /// By the second.
    pub answers: f64,
    pub winners: f64,
    pub unavailable: u64,
    pub of_all: Waits,
    pub of_winners: Waits,
}

/// Joins so many slots to a bucket.
pub fn buckets(slots: &[Slot], width: usize) -> Vec<Bucket> {
    let width = width.max(1);
    let seconds = (width * SLOT_MS) as f64 / 1000.0;
    let bucket = |(n, slots): (usize, &[Slot])| {
        let winners_us: Vec<u32> = slots.iter().flat_map(|slot| &slot.accepted_us).copied().collect();
        let others_us = slots.iter().flat_map(|slot| &slot.others_us);
        let all_us: Vec<u32> = winners_us.iter().chain(others_us).copied().collect();
        // A last bucket of fewer slots counts as a whole one: the crowd has ended within it.
        Bucket {
            from_s: n as f64 * seconds,
            answers: all_us.len() as f64 / seconds,
            winners: winners_us.len() as f64 / seconds,
            unavailable: slots.iter().map(|slot| slot.unavailable).sum(),
            of_all: Waits::of(all_us),
            of_winners: Waits::of(winners_us),
        }
    };
    slots.chunks(width).enumerate().map(bucket).collect()
}

/// The part of a crowd's time in which something was bought.
pub fn selling(slots: &[Slot]) -> &[Slot] {
    let last = slots.iter().rposition(|slot| !slot.accepted_us.is_empty());
    &slots[..last.map_or(0, |last| last + 1)]
}

pub fn json(buckets: &[Bucket]) -> Value {
    let row = |bucket: &Bucket| {
        json!({
            "from_s": bucket.from_s, "answers_a_second": bucket.answers, "winners_a_second": bucket.winners,
            "unavailable": bucket.unavailable, "all": bucket.of_all.json(), "winners": bucket.of_winners.json(),
        })
    };
    buckets.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(accepted_us: &[u32], others_us: &[u32]) -> Slot {
        Slot { accepted_us: accepted_us.to_vec(), others_us: others_us.to_vec(), unavailable: 0 }
    }

    /// Every answer is in one bucket, and the waits of winners are told apart from those of all.
    #[test]
    fn slots_are_joined() {
        let slots = [slot(&[1000, 3000], &[]), slot(&[2000], &[500]), slot(&[], &[700])];
        let joined = buckets(&slots, 2);
        let found: Vec<_> = joined.iter().map(|bucket| (bucket.from_s, bucket.answers, bucket.winners)).collect();
        assert_eq!(found, [(0.0, 20.0, 15.0), (0.2, 5.0, 0.0)]);
        assert_eq!(joined[0].of_winners, Waits { p50_ms: 2.0, p99_ms: 3.0, longest_ms: 3.0 });
        assert!(joined[1].of_winners.p99_ms.is_nan());
        assert_eq!(selling(&slots).len(), 2);
        assert!(selling(&slots[2..]).is_empty());
    }
}
