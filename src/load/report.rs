//! What the rush was told, in numbers: drawn up from the tally as a pure function.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::figures::{Bucket, Latency, bucket_width_ms, latency, timeline};
use super::plan::{Arrival, Buyer, Plan, Role};
use super::tally::{Count, Kind, Sample, Tally};

/// From when latencies count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasuredFrom {
    /// The moment of the schedule, so that waiting for a free connection counts.
    ScheduledArrival,
    /// The first request on the wire: all were due at once, and their order is ours, not the service's.
    Send,
}

/// An order that was promised, to be held against the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Accepted {
    pub user: String,
    pub order_id: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub base: String,
    pub sale_id: i64,
    pub buyers: usize,
    pub bots: usize,
    pub connections: usize,
    pub seed: u64,
    /// Buyers arriving per second; none where all were due at once.
    pub rate_per_second: Option<f64>,
    pub measured_from: MeasuredFrom,
    pub arrivals: usize,
    /// Answers received, those that asked to come back included.
    pub answers: u64,
    /// Requests sent for an arrival after its first.
    pub retries: u64,
    /// Buyers who never had a definite answer.
    pub unanswered: usize,
    /// Distinct orders promised.
    pub orders: usize,
    /// From the beginning to the last answer.
    pub duration_ms: u64,
    pub answers_per_second: f64,
    /// Requests by status and code, such as `409 sold-out`; early clicks are only in `counts_by_role`.
    pub counts: BTreeMap<String, u64>,
    pub counts_by_role: BTreeMap<Role, BTreeMap<String, u64>>,
    pub all: Option<Latency>,
    pub accepted_only: Option<Latency>,
    /// Arrivals of the first second: due in it, or first sent in it where all were due at once.
    pub first_second: Option<Latency>,
    /// How late the rush itself was in sending, by its own schedule: large where it lacks connections or processor time.
    pub send_lag: Option<Latency>,
    /// Width of a bucket of the time line.
    pub bucket_ms: u64,
    pub timeline: Vec<Bucket>,
    /// Every promise that was heard; for the caller, not for the document.
    #[serde(skip)]
    pub accepted: Vec<Accepted>,
    /// The buyers behind `unanswered`: the database may hold an order of theirs.
    #[serde(skip)]
    pub unanswered_users: Vec<String>,
}

impl Report {
    pub(super) fn draw_up(plan: &Plan, buyers: &[Buyer], arrivals: &[Arrival], tally: Tally) -> Self {
        let paced = plan.paced();
        let samples = &tally.samples;
        let ended_us = samples.iter().map(|sample| sample.answered_us).max().unwrap_or(0);
        let last = || samples.iter().filter(|sample| sample.last);
        // Began and waited, in microseconds. Whom a broken-off rush left in line has waited to its end at least.
        let waits: Vec<(u64, u64)> = last()
            .map(|sample| (sample.answered_us.saturating_sub(sample.waited_us), sample.waited_us))
            .chain(left_in_line(arrivals, samples, ended_us).filter(|_| paced))
            .collect();

        let accepted_us = last().filter(|sample| sample.kind == Kind::Accepted).map(|sample| sample.waited_us);
        let first_second_us =
            waits.iter().filter(|(began_us, _)| *began_us < 1_000_000).map(|(_, waited_us)| *waited_us);

        let unanswered_users = unanswered(buyers, arrivals, samples);
        let begun: BTreeSet<usize> = samples.iter().map(|sample| sample.arrival).collect();
        let answers = tally.counts.iter().filter(|count| count.status != 0).map(|count| count.number).sum::<u64>();
        let bucket_ms = bucket_width_ms(ended_us / 1_000);
        let orders: BTreeSet<&str> = tally.accepted.iter().map(|(_, order_id)| order_id.as_str()).collect();

        let mut report = Self {
            base: plan.base.clone(),
            sale_id: plan.sale_id,
            buyers: plan.arriving(),
            bots: plan.bots,
            connections: plan.connections.max(1),
            seed: plan.seed,
            rate_per_second: plan.rate_per_second(),
            measured_from: if paced { MeasuredFrom::ScheduledArrival } else { MeasuredFrom::Send },
            arrivals: arrivals.len(),
            answers,
            retries: (samples.len() - begun.len()) as u64,
            unanswered: unanswered_users.len(),
            orders: orders.len(),
            duration_ms: ended_us / 1_000,
            answers_per_second: answers as f64 * 1e6 / ended_us.max(1) as f64,
            counts: BTreeMap::new(),
            counts_by_role: BTreeMap::new(),
            all: latency(waits.iter().map(|(_, waited_us)| *waited_us)),
            accepted_only: latency(accepted_us),
            first_second: latency(first_second_us),
            send_lag: latency(last().filter(|_| paced).map(|sample| sample.lag_us)),
            bucket_ms,
            timeline: timeline(samples, bucket_ms),
            accepted: accepted(buyers, &tally),
            unanswered_users,
        };
        for count in &tally.counts {
            *report.counts.entry(label(count)).or_default() += count.number;
        }
        report.add_counts(&tally.counts);
        report
    }

    /// Adds what was said to early clicks. An order promised to one of them is a promise like any other.
    pub(super) fn add_early(&mut self, buyers: &[Buyer], tally: &Tally) {
        self.add_counts(&tally.counts);
        for accepted in accepted(buyers, tally) {
            if !self.accepted.contains(&accepted) {
                self.accepted.push(accepted);
            }
        }
        self.orders = self.accepted.iter().map(|accepted| &accepted.order_id).collect::<BTreeSet<_>>().len();
    }

    fn add_counts(&mut self, counts: &[Count]) {
        for count in counts {
            *self.counts_by_role.entry(count.role).or_default().entry(label(count)).or_default() += count.number;
        }
    }
}

fn accepted(buyers: &[Buyer], tally: &Tally) -> Vec<Accepted> {
    let named =
        |(who, order_id): &(usize, String)| Accepted { user: buyers[*who].user.clone(), order_id: order_id.clone() };
    tally.accepted.iter().map(named).collect()
}

/// The buyers whom nothing definite was said to.
fn unanswered(buyers: &[Buyer], arrivals: &[Arrival], samples: &[Sample]) -> Vec<String> {
    let definite: BTreeSet<usize> =
        samples.iter().filter(|sample| sample.kind != Kind::Failed).map(|sample| sample.arrival).collect();
    arrivals
        .iter()
        .enumerate()
        .filter(|(index, arrival)| arrival.role == Role::Buyer && !definite.contains(index))
        .map(|(_, arrival)| buyers[arrival.who].user.clone())
        .collect()
}

/// When they were due and how long they have waited, of those for whom nothing was the last word.
fn left_in_line(arrivals: &[Arrival], samples: &[Sample], ended_us: u64) -> impl Iterator<Item = (u64, u64)> {
    let settled: BTreeSet<usize> = samples.iter().filter(|sample| sample.last).map(|sample| sample.arrival).collect();
    arrivals.iter().enumerate().filter(move |(index, _)| !settled.contains(index)).map(move |(_, arrival)| {
        let due_us = arrival.due.as_micros().try_into().unwrap_or(u64::MAX);
        (due_us, ended_us.saturating_sub(due_us))
    })
}

fn label(count: &Count) -> String {
    match (count.status, count.code.as_str()) {
        (0, how) => format!("no answer: {how}"),
        (status, "") => status.to_string(),
        (status, code) => format!("{status} {code}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(arrival: usize, sent_ms: u64, answered_ms: u64, kind: Kind, last: bool) -> Sample {
        Sample {
            arrival,
            sent_us: sent_ms * 1_000,
            answered_us: answered_ms * 1_000,
            waited_us: (answered_ms - sent_ms) * 1_000,
            lag_us: 0,
            kind,
            last,
        }
    }

    /// Three buyers: one accepted at the second try, one sold out, one never answered; and a bot refused.
    pub fn report() -> Report {
        let plan = Plan { buyers: 3, bots: 1, rate: Some(10), ..Plan::default() };
        let buyers: Vec<Buyer> = (0..4).map(|n| Buyer { user: format!("u{n}"), token: String::new() }).collect();
        let arrival = |who, role| Arrival { due: Duration::ZERO, role, who };
        let arrivals =
            [arrival(0, Role::Buyer), arrival(1, Role::Buyer), arrival(2, Role::Buyer), arrival(3, Role::Bot)];
        let mut tally = Tally {
            samples: vec![
                sample(0, 0, 5, Kind::Failed, false),
                sample(0, 210, 215, Kind::Accepted, true),
                sample(1, 0, 8, Kind::SoldOut, true),
                sample(2, 0, 300, Kind::Failed, true),
                sample(3, 0, 2, Kind::Refused, true),
            ],
            ..Tally::default()
        };
        tally.count(Role::Buyer, 503, "temporarily-unavailable", 1);
        tally.count(Role::Buyer, 202, "", 1);
        tally.count(Role::Buyer, 409, "sold-out", 1);
        tally.count(Role::Buyer, 0, "time-out", 1);
        tally.count(Role::Bot, 429, "quota-exceeded", 1);
        tally.accepted.insert((0, "order-a".to_owned()));
        Report::draw_up(&plan, &buyers, &arrivals, tally)
    }

    #[test]
    fn everything_is_counted_once() {
        let report = report();
        assert_eq!((report.answers, report.retries, report.orders), (4, 1, 1));
        assert_eq!(report.unanswered_users, ["u2"]);
        assert_eq!(report.accepted, [Accepted { user: "u0".to_owned(), order_id: "order-a".to_owned() }]);
        assert_eq!(report.counts["503 temporarily-unavailable"], 1);
        assert_eq!(report.counts["no answer: time-out"], 1);
        assert_eq!(report.counts_by_role[&Role::Bot]["429 quota-exceeded"], 1);
        assert_eq!(report.all.as_ref().map(|latency| latency.arrivals), Some(4));
        assert_eq!(report.accepted_only.map(|latency| latency.arrivals), Some(1));
    }

    #[test]
    fn those_left_in_line_have_waited_to_the_end() {
        let arrival = |due_ms| Arrival { due: Duration::from_millis(due_ms), role: Role::Buyer, who: 0 };
        let samples = [sample(0, 0, 40, Kind::SoldOut, true), sample(1, 50, 90, Kind::Failed, false)];
        let left: Vec<_> = left_in_line(&[arrival(0), arrival(50)], &samples, 90_000).collect();
        assert_eq!(left, [(50_000, 40_000)]);
    }

    #[test]
    fn the_time_line_holds_every_answer() {
        let report = report();
        assert_eq!((report.bucket_ms, report.timeline.len()), (10, 31));
        let first = Bucket { from_ms: 0, sent: 4, refused: 1, sold_out: 1, failed: 1, ..Bucket::default() };
        assert_eq!(report.timeline[0], first);
        assert_eq!(report.timeline[21].accepted, 1);
    }

    #[test]
    fn the_document_leaves_the_users_out() -> Result<(), serde_json::Error> {
        let document = serde_json::to_value(report())?;
        assert_eq!(document["counts_by_role"]["bot"]["429 quota-exceeded"], 1);
        assert_eq!(document["measured_from"], "scheduled_arrival");
        assert!(document.get("accepted").is_none());
        Ok(())
    }
}
