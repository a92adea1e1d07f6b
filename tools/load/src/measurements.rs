//! What each thread measures. The measurements are merged once at the end, so that threads share nothing.

use std::collections::BTreeMap;

use serde::Serialize;

use super::plan::Role;
use super::reply::AnswerKind;

/// The width of the finest buckets of time.
pub(crate) const BUCKET_MS: u64 = 25;
/// Four hours of buckets, which bounds the memory. Later events count in the last one.
const BUCKETS_MAX: usize = 4 * 3_600_000 / BUCKET_MS as usize;

/// Events in one bucket of time, by the time of the send and of the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Bucket {
    pub from_ms: u64,
    /// Arrivals due by the schedule.
    pub arrived: u64,
    pub sent: u64,
    pub accepted: u64,
    pub sold_out: u64,
    pub refused: u64,
    pub failed: u64,
    /// Distinct orders promised until the end of the bucket.
    pub orders_so_far: u64,
    /// Stock at the beginning less these orders.
    pub stock_left: Option<u64>,
}

impl Bucket {
    fn add(&mut self, other: &Self) {
        let Self { from_ms: _, arrived, sent, accepted, sold_out, refused, failed, orders_so_far, stock_left: _ } =
            *other;
        self.arrived += arrived;
        self.sent += sent;
        self.accepted += accepted;
        self.sold_out += sold_out;
        self.refused += refused;
        self.failed += failed;
        self.orders_so_far += orders_so_far;
    }
}

/// Buckets of equal width, the empty ones included.
#[derive(Debug, Default)]
pub(crate) struct Timeline(pub Vec<Bucket>);

impl Timeline {
    /// The bucket of a moment, which is counted from the beginning of the rush.
    pub(crate) fn at(&mut self, us: u64) -> &mut Bucket {
        let index = usize::try_from(us / 1_000 / BUCKET_MS).unwrap_or(usize::MAX).min(BUCKETS_MAX - 1);
        for next in self.0.len()..=index {
            self.0.push(Bucket { from_ms: next as u64 * BUCKET_MS, ..Bucket::default() });
        }
        &mut self.0[index]
    }

    /// Joins so many buckets to one.
    pub(crate) fn widened(&self, times: usize) -> Vec<Bucket> {
        let joined = self.0.chunks(times).map(|buckets| {
            let mut sum = Bucket { from_ms: buckets[0].from_ms, ..Bucket::default() };
            buckets.iter().for_each(|bucket| sum.add(bucket));
            sum
        });
        joined.collect()
    }
}

/// The end of an arrival that had its last answer; times in microseconds since the beginning of the rush.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settled {
    /// Index into the schedule.
    pub arrival: usize,
    pub answered_us: u64,
    /// From the scheduled time to this answer, with retries.
    pub waited_us: u64,
    /// How long after its scheduled time the first request left.
    pub lag_us: u64,
    /// The part of it in which a connection was free.
    pub own_lag_us: u64,
    pub kind: AnswerKind,
}

#[derive(Debug)]
pub(crate) struct Count {
    pub role: Role,
    pub status: u16,
    pub code: String,
    pub number: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Measurements {
    /// One for each arrival, so that many retries do not fill the memory.
    pub settled: Vec<Settled>,
    /// Every request, by time.
    pub timeline: Timeline,
    /// When the last answer came.
    pub ended_us: u64,
    /// Requests sent for an arrival after its first.
    pub retries: u64,
    /// About a dozen entries: a scan is cheaper than a map with owned keys.
    pub counts: Vec<Count>,
    /// Orders promised: index into the crowd and order id, with the time of the first promise in microseconds.
    pub accepted: BTreeMap<(usize, String), u64>,
}

impl Measurements {
    /// Counts a request that has ended, by time.
    pub(crate) fn ended(&mut self, sent_us: u64, answered_us: u64, kind: AnswerKind) {
        self.ended_us = self.ended_us.max(answered_us);
        self.timeline.at(sent_us).sent += 1;
        let bucket = self.timeline.at(answered_us);
        *match kind {
            AnswerKind::Accepted => &mut bucket.accepted,
            AnswerKind::SoldOut => &mut bucket.sold_out,
            AnswerKind::Refused => &mut bucket.refused,
            AnswerKind::Failed => &mut bucket.failed,
        } += 1;
    }

    pub(crate) fn count(&mut self, role: Role, status: u16, code: &str, number: u64) {
        let same = |count: &&mut Count| count.role == role && count.status == status && count.code == code;
        match self.counts.iter_mut().find(same) {
            Some(count) => count.number += number,
            None => self.counts.push(Count { role, status, code: code.to_owned(), number }),
        }
    }

    /// Records a promised order. A repeated request repeats the promise; the earliest time counts.
    pub(crate) fn promise(&mut self, caller: usize, order_id: String, at_us: u64) {
        self.accepted
            .entry((caller, order_id))
            .and_modify(|first_us| *first_us = at_us.min(*first_us))
            .or_insert(at_us);
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.settled.extend(other.settled);
        self.ended_us = self.ended_us.max(other.ended_us);
        self.retries += other.retries;
        for bucket in &other.timeline.0 {
            self.timeline.at(bucket.from_ms * 1_000).add(bucket);
        }
        for ((caller, order_id), at_us) in other.accepted {
            self.promise(caller, order_id, at_us);
        }
        for Count { role, status, code, number } in other.counts {
            self.count(role, status, &code, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The measurements of threads become one.
    #[test]
    fn measurements_are_merged() {
        let (mut one, mut other) = (Measurements::default(), Measurements::default());
        one.promise(3, "a1".to_owned(), 70);
        one.ended(10, 26_000, AnswerKind::Accepted);
        other.promise(3, "a1".to_owned(), 40);
        other.ended(0, u64::MAX, AnswerKind::Failed);
        one.merge(other);
        assert_eq!(one.accepted, BTreeMap::from([((3, "a1".to_owned()), 40)]));
        let buckets = &one.timeline.0;
        assert_eq!((buckets[0].sent, buckets[1].accepted, buckets[1].from_ms), (2, 1, 25));
        assert_eq!((buckets.len(), buckets[BUCKETS_MAX - 1].failed), (BUCKETS_MAX, 1));
        let wide = one.timeline.widened(4);
        assert_eq!((wide[0].sent, wide[0].accepted, wide[1].from_ms), (2, 1, 100));
    }
}
