//! What each thread measures. The measurements are merged once at the end, so that threads share nothing.

use std::collections::BTreeMap;

use super::plan::Role;
use super::reply::AnswerKind;
use super::traffic::Traffic;

/// How an arrival ended that had its last answer; times in microseconds since the beginning of the rush.
#[derive(Debug, Clone, Copy)]
pub struct Settled {
    /// Index into the schedule.
    pub arrival: usize,
    pub answered_us: u64,
    /// From the arrival (its scheduled time or its first send, see [`super::MeasuredFrom`]) to this answer, with retries.
    pub waited_us: u64,
    /// How long after its scheduled time the first request left.
    pub lag_us: u64,
    /// The part of it in which a connection was free.
    pub own_lag_us: u64,
    pub kind: AnswerKind,
}

#[derive(Debug)]
pub struct Count {
    pub role: Role,
    pub status: u16,
    pub code: String,
    pub number: u64,
}

#[derive(Debug, Default)]
pub struct Measurements {
    /// One for each arrival, so that many retries do not fill the memory.
    pub settled: Vec<Settled>,
    /// Every request, by time.
    pub traffic: Traffic,
    /// Requests sent for an arrival after its first.
    pub retries: u64,
    /// About a dozen entries: a scan is cheaper than a map with owned keys.
    pub counts: Vec<Count>,
    /// Orders promised: index into the crowd and order id, with the time of the first promise in microseconds.
    pub accepted: BTreeMap<(usize, String), u64>,
}

impl Measurements {
    pub fn count(&mut self, role: Role, status: u16, code: &str, number: u64) {
        let same = |count: &&mut Count| count.role == role && count.status == status && count.code == code;
        match self.counts.iter_mut().find(same) {
            Some(count) => count.number += number,
            None => self.counts.push(Count { role, status, code: code.to_owned(), number }),
        }
    }

    /// Records a promised order. A repeated request repeats the promise; the earliest time counts.
    pub fn promise(&mut self, caller: usize, order_id: String, at_us: u64) {
        self.accepted
            .entry((caller, order_id))
            .and_modify(|first_us| *first_us = at_us.min(*first_us))
            .or_insert(at_us);
    }

    pub fn merge(&mut self, other: Self) {
        self.settled.extend(other.settled);
        self.traffic.merge(&other.traffic);
        self.retries += other.retries;
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

    #[test]
    fn the_earliest_promise_of_an_order_counts() {
        let mut measurements = Measurements::default();
        measurements.promise(3, "a1".to_owned(), 70);
        let mut other = Measurements::default();
        other.promise(3, "a1".to_owned(), 40);
        measurements.merge(other);
        assert_eq!(measurements.accepted, BTreeMap::from([((3, "a1".to_owned()), 40)]));
    }
}
