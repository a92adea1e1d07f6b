//! The report: numbers computed from the measurements by a pure function.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::lag::Lag;
use super::measurements::{Count, Measurements, Settled};
use super::plan::{Arrival, Buyer, Plan, Role};
use super::reply::AnswerKind;
use super::shape::Shape;
use super::statistics::{
    Bucket, Events, HistogramStep, Latency, LatencyBucket, Wait, bucket_width_ms, histogram, latency, latency_timeline,
};
use super::traffic::FIRST_SECOND_BUCKET_MS;
use super::watchers::Watched;

/// The moment from which a latency counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasuredFrom {
    /// The scheduled time, so that the wait for a free connection counts.
    ScheduledArrival,
    /// The first send: all arrivals were due at once, and the order in which they were sent is ours.
    Send,
}

/// An order that was promised with a 202, to be looked up in the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Accepted {
    pub user: String,
    pub order_id: String,
}

/// Numbers of requests that were mixed in among the buyers'.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Mix {
    /// Clicks before the start; 0 if the sale was already open.
    pub early_clicks: usize,
    pub second_clicks: usize,
    pub unknown_sales: usize,
    pub forged_tokens: usize,
    pub bot_requests: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// When the schedule began, by the clock of the machine that played it.
    pub began_at: Option<DateTime<Utc>>,
    pub base: String,
    pub sale_id: i64,
    pub buyers: usize,
    pub bots: usize,
    pub connections: usize,
    /// Threads that sent.
    pub threads: usize,
    pub seed: u64,
    pub shape: Shape,
    /// Planned length of a rush, in seconds; none for an even crowd.
    pub rush_s: Option<f64>,
    pub mix: Mix,
    /// Buyers arriving per second, on average; none if all were due at once.
    pub rate_per_second: Option<f64>,
    pub measured_from: MeasuredFrom,
    pub arrivals: usize,
    /// Answers received, including requests for a retry.
    pub answers: u64,
    /// Requests sent for an arrival after its first.
    pub retries: u64,
    /// Buyers who never had a definite answer.
    pub unanswered: usize,
    /// Distinct orders promised.
    pub orders: usize,
    /// Units left when the rush began, if known.
    pub stock: Option<u64>,
    /// Forged tokens, unknown sales and clicks before the start that were accepted: each is a fault of the service.
    pub wrongly_accepted: u64,
    /// From the beginning to the last answer.
    pub duration_ms: u64,
    pub answers_per_second: f64,
    /// Requests by status and code, such as `409 sold-out`; early clicks are only in `counts_by_role`.
    pub counts: BTreeMap<String, u64>,
    pub counts_by_role: BTreeMap<Role, BTreeMap<String, u64>>,
    pub all: Option<Latency>,
    pub accepted_only: Option<Latency>,
    pub by_role: BTreeMap<Role, Latency>,
    /// Arrivals of the first second: due in it or, if all were due at once, first sent in it.
    pub first_second: Option<Latency>,
    /// How late the requests were sent, by the schedule: large if connections or processor time are too few.
    pub send_lag: Option<Latency>,
    /// The same in short, with the generator's own part of it, and whether the crowd fell behind its schedule. None if all were
    /// due at once.
    pub lag: Option<Lag>,
    /// The same of the arrivals of the first second.
    pub first_second_lag: Option<Lag>,
    /// Width of a bucket of the timeline.
    pub bucket_ms: u64,
    pub timeline: Vec<Bucket>,
    pub latency_timeline: Vec<LatencyBucket>,
    pub first_second_bucket_ms: u64,
    pub first_second_timeline: Vec<Bucket>,
    pub first_second_latency_timeline: Vec<LatencyBucket>,
    pub latency_histogram: Vec<HistogramStep>,
    /// The orders that were followed; none if none was to be.
    pub watched: Option<Watched>,
    /// Every promised order; for the caller, not part of the JSON document.
    #[serde(skip)]
    pub accepted: Vec<Accepted>,
    /// The buyers counted by `unanswered`: the database may have an order for them.
    #[serde(skip)]
    pub unanswered_users: Vec<String>,
}

impl Report {
    pub(super) fn compute(plan: &Plan, buyers: &[Buyer], arrivals: &[Arrival], measured: Measurements) -> Self {
        let paced = plan.paced();
        let settled = &measured.settled;
        let ended_us = measured.traffic.ended_us().unwrap_or(0);
        // Whom a broken-off rush left in line has waited to its end at least.
        let waits_of: Vec<(usize, Wait)> = settled
            .iter()
            .map(|settled| (settled.arrival, wait(settled)))
            .chain(unfinished(arrivals, settled, ended_us).filter(|_| paced))
            .collect();
        let waits: Vec<Wait> = waits_of.iter().map(|(_, wait)| *wait).collect();
        let mut by_role: BTreeMap<Role, Vec<u64>> = BTreeMap::new();
        for (arrival, wait) in &waits_of {
            by_role.entry(arrivals[*arrival].role).or_default().push(wait.waited_us);
        }
        let accepted_us =
            settled.iter().filter(|settled| settled.kind == AnswerKind::Accepted).map(|settled| settled.waited_us);
        let first_second_us = waits.iter().filter(|wait| wait.in_first_second()).map(|wait| wait.waited_us);
        // By a schedule in which all are due at once, everybody is late.
        let scheduled = settled.iter().filter(|_| paced);

        let unanswered_users = unanswered(buyers, arrivals, settled);
        let answers = measured.counts.iter().filter(|count| count.status != 0).map(|count| count.number).sum::<u64>();
        let bucket_ms = bucket_width_ms(ended_us / 1_000);
        let orders_us = first_promises(&measured);
        let traffic = &measured.traffic;
        let events = Events { arrivals, paced, ended_us: traffic.ended_us(), orders_us: &orders_us, stock: plan.stock };
        let number = |role| arrivals.iter().filter(|arrival| arrival.role == role).count();

        let mut report = Self {
            began_at: None,
            base: plan.base.clone(),
            sale_id: plan.sale_id,
            buyers: plan.arriving(),
            bots: plan.bots,
            connections: plan.connections.max(1),
            threads: plan.threads.clamp(1, plan.connections.max(1)),
            seed: plan.seed,
            shape: plan.shape,
            rush_s: (plan.shape == Shape::Rush).then(|| plan.rush_s()),
            mix: Mix {
                early_clicks: 0,
                second_clicks: number(Role::SecondClick),
                unknown_sales: number(Role::UnknownSale),
                forged_tokens: number(Role::ForgedToken),
                bot_requests: number(Role::Bot),
            },
            rate_per_second: plan.rate_per_second(),
            measured_from: if paced { MeasuredFrom::ScheduledArrival } else { MeasuredFrom::Send },
            arrivals: arrivals.len(),
            answers,
            retries: measured.retries,
            unanswered: unanswered_users.len(),
            orders: orders_us.len(),
            stock: plan.stock,
            wrongly_accepted: 0,
            duration_ms: ended_us / 1_000,
            answers_per_second: answers as f64 * 1e6 / ended_us.max(1) as f64,
            counts: BTreeMap::new(),
            counts_by_role: BTreeMap::new(),
            all: latency(waits.iter().map(|wait| wait.waited_us)),
            accepted_only: latency(accepted_us),
            by_role: by_role
                .into_iter()
                .filter_map(|(role, waits_us)| Some((role, latency(waits_us.into_iter())?)))
                .collect(),
            first_second: latency(first_second_us),
            send_lag: latency(scheduled.clone().map(|settled| settled.lag_us)),
            lag: Lag::of(scheduled.clone()),
            first_second_lag: Lag::of(scheduled.filter(|settled| wait(settled).in_first_second())),
            bucket_ms,
            timeline: events.timeline(traffic.whole(), bucket_ms, u64::MAX),
            latency_timeline: latency_timeline(&waits, bucket_ms, u64::MAX),
            first_second_bucket_ms: FIRST_SECOND_BUCKET_MS,
            first_second_timeline: events.timeline(traffic.first_second(), FIRST_SECOND_BUCKET_MS, 1_000),
            first_second_latency_timeline: latency_timeline(&waits, FIRST_SECOND_BUCKET_MS, 1_000),
            latency_histogram: histogram(&waits),
            watched: None,
            accepted: accepted(buyers, &measured),
            unanswered_users,
        };
        for count in &measured.counts {
            *report.counts.entry(label(count)).or_default() += count.number;
        }
        report.add_counts(&measured.counts);
        report
    }

    /// Adds the answers to early clicks. An order promised to one of them counts like any other.
    pub(super) fn add_early(&mut self, buyers: &[Buyer], clicks: &[Arrival], measured: &Measurements) {
        self.mix.early_clicks += clicks.len();
        self.add_counts(&measured.counts);
        for accepted in accepted(buyers, measured) {
            if !self.accepted.contains(&accepted) {
                self.accepted.push(accepted);
            }
        }
        self.orders = self.accepted.iter().map(|accepted| &accepted.order_id).collect::<BTreeSet<_>>().len();
    }

    fn add_counts(&mut self, counts: &[Count]) {
        for count in counts {
            if count.role.must_be_refused() && count.status == 202 {
                self.wrongly_accepted += count.number;
            }
            *self.counts_by_role.entry(count.role).or_default().entry(label(count)).or_default() += count.number;
        }
    }
}

fn accepted(buyers: &[Buyer], measured: &Measurements) -> Vec<Accepted> {
    let named =
        |(who, order_id): &(usize, String)| Accepted { user: buyers[*who].user.clone(), order_id: order_id.clone() };
    measured.accepted.keys().map(named).collect()
}

/// When each order was first promised, in microseconds, sorted.
fn first_promises(measured: &Measurements) -> Vec<u64> {
    let mut first_us: BTreeMap<&str, u64> = BTreeMap::new();
    for ((_, order_id), at_us) in &measured.accepted {
        first_us.entry(order_id).and_modify(|us| *us = *at_us.min(us)).or_insert(*at_us);
    }
    let mut sorted: Vec<u64> = first_us.into_values().collect();
    sorted.sort_unstable();
    sorted
}

fn wait(settled: &Settled) -> Wait {
    let Settled { answered_us, waited_us, .. } = *settled;
    Wait { began_us: answered_us.saturating_sub(waited_us), waited_us }
}

/// The buyers who never had a definite answer.
fn unanswered(buyers: &[Buyer], arrivals: &[Arrival], settled: &[Settled]) -> Vec<String> {
    let definite: BTreeSet<usize> =
        settled.iter().filter(|settled| settled.kind != AnswerKind::Failed).map(|settled| settled.arrival).collect();
    arrivals
        .iter()
        .enumerate()
        .filter(|(index, arrival)| arrival.role == Role::Buyer && !definite.contains(index))
        .map(|(_, arrival)| buyers[arrival.caller].user.clone())
        .collect()
}

/// The waits of arrivals that never had a last answer; they last until the end of the rush.
fn unfinished(arrivals: &[Arrival], settled: &[Settled], ended_us: u64) -> impl Iterator<Item = (usize, Wait)> {
    let settled: BTreeSet<usize> = settled.iter().map(|settled| settled.arrival).collect();
    arrivals.iter().enumerate().filter(move |(index, _)| !settled.contains(index)).map(move |(index, arrival)| {
        let began_us = arrival.due.as_micros().try_into().unwrap_or(u64::MAX);
        (index, Wait { began_us, waited_us: ended_us.saturating_sub(began_us) })
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

    /// The last answer to an arrival that was sent once, when it was due.
    fn settled(arrival: usize, due_ms: u64, answered_ms: u64, kind: AnswerKind) -> Settled {
        let (answered_us, waited_us) = (answered_ms * 1_000, (answered_ms - due_ms) * 1_000);
        Settled { arrival, answered_us, waited_us, lag_us: 0, own_lag_us: 0, kind }
    }

    /// Three buyers: one accepted at the second try, one sold out, one never answered; and a bot refused.
    pub fn report() -> Report {
        report_with(|_| {})
    }

    /// The same, after a change of the measurements.
    fn report_with(change: impl FnOnce(&mut Measurements)) -> Report {
        let plan = Plan { buyers: 3, bots: 1, rate: Some(10), stock: Some(5), ..Plan::default() };
        let buyers: Vec<Buyer> = (0..4).map(|n| Buyer { user: format!("u{n}"), token: String::new() }).collect();
        let arrival = |caller, role| Arrival { due: Duration::ZERO, role, caller };
        let arrivals =
            [arrival(0, Role::Buyer), arrival(1, Role::Buyer), arrival(2, Role::Buyer), arrival(3, Role::Bot)];
        let mut measured = Measurements { retries: 1, ..Measurements::default() };
        for (sent_ms, answered_ms, kind) in [
            (0, 5, AnswerKind::Failed),
            (210, 215, AnswerKind::Accepted),
            (0, 8, AnswerKind::SoldOut),
            (0, 300, AnswerKind::Failed),
            (0, 2, AnswerKind::Refused),
        ] {
            measured.traffic.add(sent_ms * 1_000, answered_ms * 1_000, kind);
        }
        measured.settled = vec![
            settled(0, 0, 215, AnswerKind::Accepted),
            settled(1, 0, 8, AnswerKind::SoldOut),
            settled(2, 0, 300, AnswerKind::Failed),
            settled(3, 0, 2, AnswerKind::Refused),
        ];
        measured.count(Role::Buyer, 503, "temporarily-unavailable", 1);
        measured.count(Role::Buyer, 202, "", 1);
        measured.count(Role::Buyer, 409, "sold-out", 1);
        measured.count(Role::Buyer, 0, "time-out", 1);
        measured.count(Role::Bot, 429, "quota-exceeded", 1);
        measured.promise(0, "order-a".to_owned(), 215_000);
        change(&mut measured);
        Report::compute(&plan, &buyers, &arrivals, measured)
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
    fn unfinished_arrivals_have_waited_to_the_end() {
        let arrival = |due_ms| Arrival { due: Duration::from_millis(due_ms), role: Role::Buyer, caller: 0 };
        let arrivals = [arrival(0), arrival(50)];
        let answered = [settled(0, 0, 40, AnswerKind::SoldOut)];
        let left = unfinished(&arrivals, &answered, 90_000);
        let left: Vec<_> = left.map(|(index, wait)| (index, wait.began_us, wait.waited_us)).collect();
        assert_eq!(left, [(1, 50_000, 40_000)]);
    }

    #[test]
    fn the_timeline_has_every_answer() {
        let report = report();
        assert_eq!((report.bucket_ms, report.timeline.len()), (10, 31));
        let first = Bucket {
            from_ms: 0,
            arrived: 4,
            sent: 4,
            refused: 1,
            sold_out: 1,
            failed: 1,
            stock_left: Some(5),
            ..Bucket::default()
        };
        assert_eq!(report.timeline[0], first);
        assert_eq!(report.timeline[21].accepted, 1);
        let left: Vec<_> = [20, 21, 30].map(|n| report.timeline[n].stock_left).into();
        assert_eq!(left, [Some(5), Some(4), Some(4)]);
        assert_eq!(report.first_second_timeline.len(), 13);
        assert_eq!(report.first_second_timeline.last().map(|bucket| bucket.orders_so_far), Some(1));
    }

    /// A crowd that was not sent as planned says so in the document and in the text, and why: its latencies include it.
    #[test]
    fn a_generator_that_falls_behind_says_so() -> Result<(), serde_json::Error> {
        let quiet = report();
        assert!(quiet.lag.as_ref().is_some_and(|lag| !lag.fell_behind && lag.late == 0));
        assert!(!quiet.render_text().contains("behind schedule, because"));
        let late = report_with(|measured| {
            measured.settled[1].lag_us = 70_000;
            measured.settled[1].own_lag_us = 60_000;
        });
        let document = serde_json::to_value(&late)?;
        for lag in ["lag", "first_second_lag"] {
            let (p99_ms, own_ms) = (document[lag]["p99_ms"].as_f64(), document[lag]["own_longest_ms"].as_f64());
            assert!(p99_ms.is_some_and(|ms| (69.9..70.1).contains(&ms)), "{document}");
            assert!(own_ms.is_some_and(|ms| (59.9..60.1).contains(&ms)), "{document}");
            assert_eq!((&document[lag]["fell_behind"], &document[lag]["late"]), (&true.into(), &1.into()));
        }
        let text = late.render_text();
        assert!(text.contains("WARNING   1 arrivals were sent more than 50 ms behind schedule, because"), "{text}");
        Ok(())
    }

    #[test]
    fn accepting_what_must_be_refused_is_counted_as_a_fault() {
        let mut report = report();
        assert_eq!(report.wrongly_accepted, 0);
        let mut measured = Measurements::default();
        measured.count(Role::EarlyClick, 403, "not-started", 4);
        measured.count(Role::EarlyClick, 202, "", 1);
        let click = Arrival { due: Duration::ZERO, role: Role::EarlyClick, caller: 0 };
        report.add_early(&[], &vec![click; 5], &measured);
        assert_eq!((report.wrongly_accepted, report.mix.early_clicks), (1, 5));
    }

    #[test]
    fn the_document_leaves_the_users_out() -> Result<(), serde_json::Error> {
        let document = serde_json::to_value(report())?;
        assert_eq!(document["counts_by_role"]["bot"]["429 quota-exceeded"], 1);
        assert_eq!(document["measured_from"], "scheduled_arrival");
        assert_eq!(document["shape"], "even");
        assert_eq!(document["mix"]["bot_requests"], 1);
        assert_eq!(document["latency_timeline"][0]["from_ms"], 0);
        assert!(document["latency_timeline"][0]["p99_ms"].is_number());
        for part in ["timeline", "first_second_timeline", "first_second_latency_timeline", "latency_histogram"] {
            assert!(document[part].as_array().is_some_and(|rows| !rows.is_empty()), "{part}");
        }
        assert!(document.get("accepted").is_none());
        Ok(())
    }
}
