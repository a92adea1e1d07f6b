//! The report: figures computed from the measurements by a pure function.

use std::collections::{BTreeMap, BTreeSet};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::measurements::{BUCKET_MS, Bucket, Count, Measurements, Settled};
use super::plan::{Arrival, Buyer, Plan, Role};
use super::player::micros;
use super::reply::AnswerKind;
use super::shape::Shape;

/// A timeline has at most this many buckets: they fit beside their label on a terminal.
const BUCKETS_MAX: usize = 72;
/// An arrival that leaves later than this is late. People do not notice less.
pub(crate) const LATE_MS: u64 = 50;
/// Significant digits of the latencies.
const DIGITS: u8 = 3;

/// Latency of a group: one value per arrival, to its last answer, with retries.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latency {
    pub arrivals: u64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub p99_9_ms: f64,
    pub max_ms: f64,
}

impl Latency {
    /// None without a value.
    fn of(values_us: impl Iterator<Item = u64>) -> Option<Self> {
        let mut histogram = Histogram::<u64>::new(DIGITS).ok()?;
        values_us.for_each(|value_us| histogram.record(value_us).unwrap_or_default());
        let ms = |us: u64| us as f64 / 1_000.0;
        let at = |quantile| ms(histogram.value_at_quantile(quantile));
        (!histogram.is_empty()).then(|| Self {
            arrivals: histogram.len(),
            p50_ms: at(0.50),
            p90_ms: at(0.90),
            p99_ms: at(0.99),
            p99_9_ms: at(0.999),
            max_ms: ms(histogram.max()),
        })
    }
}

/// How late the first requests of arrivals left, by the schedule. All latencies include it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lag {
    pub p99_ms: f64,
    pub longest_ms: f64,
    /// The part of it in which a connection was free: the generator itself had too little processor time. The rest was spent
    /// waiting until the service answered on one of the connections.
    pub own_p99_ms: f64,
    pub own_longest_ms: f64,
    /// Arrivals sent more than 50 ms late.
    pub late: u64,
    /// More than one arrival in a hundred was.
    pub fell_behind: bool,
}

impl Lag {
    /// The lag of these arrivals; none if there are none.
    fn of<'a>(settled: impl Iterator<Item = &'a Settled> + Clone) -> Option<Self> {
        let all = Latency::of(settled.clone().map(|settled| settled.lag_us))?;
        let own = Latency::of(settled.clone().map(|settled| settled.own_lag_us))?;
        let late = settled.filter(|settled| settled.lag_us > LATE_MS * 1_000).count() as u64;
        Some(Self {
            p99_ms: all.p99_ms,
            longest_ms: all.max_ms,
            own_p99_ms: own.p99_ms,
            own_longest_ms: own.max_ms,
            late,
            fell_behind: late * 100 > all.arrivals,
        })
    }

    /// Why the arrivals were late, and what to do about it.
    pub fn cause(&self) -> &'static str {
        if self.own_p99_ms > LATE_MS as f64 {
            "the generator had too little processor time: use --threads, or another machine"
        } else {
            "all connections waited for answers: use --connections, unless the service takes no more"
        }
    }
}

/// An order that was promised with a 202, to be looked up in the database.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Accepted {
    pub user: String,
    pub order_id: String,
}

/// Numbers by status and code, such as `409 sold-out`.
type Counts = BTreeMap<String, u64>;

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub base: String,
    pub sale_id: i64,
    pub buyers: usize,
    pub bots: usize,
    pub connections: usize,
    /// Threads that sent.
    pub threads: usize,
    pub seed: u64,
    pub shape: Shape,
    /// Planned length in seconds.
    pub length_s: f64,
    /// Requests that were mixed in among the buyers'. No early clicks if the sale was already open.
    pub mix: BTreeMap<Role, usize>,
    /// Buyers arriving per second, on average.
    pub rate_per_second: f64,
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
    /// All requests; early clicks are only in `counts_by_role`.
    pub counts: Counts,
    pub counts_by_role: BTreeMap<Role, Counts>,
    pub all: Option<Latency>,
    pub accepted_only: Option<Latency>,
    /// Arrivals due in the first second.
    pub first_second: Option<Latency>,
    /// None without an answer.
    pub lag: Option<Lag>,
    pub first_second_lag: Option<Lag>,
    /// Width of a bucket of the timeline.
    pub bucket_ms: u64,
    pub timeline: Vec<Bucket>,
    /// In buckets of 25 ms.
    pub first_second_timeline: Vec<Bucket>,
    /// Every promised order; for the caller, not part of the JSON document.
    #[serde(skip)]
    pub accepted: Vec<Accepted>,
    /// The buyers counted by `unanswered`: the database may have an order for them.
    #[serde(skip)]
    pub unanswered_users: Vec<String>,
}

impl Report {
    pub(super) fn compute(plan: &Plan, buyers: &[Buyer], arrivals: &[Arrival], mut measured: Measurements) -> Self {
        let ended_us = measured.ended_us;
        let mut settled: Vec<Option<Settled>> = vec![None; arrivals.len()];
        measured.settled.iter().for_each(|one| settled[one.arrival] = Some(*one));
        let is_first = |began_us: u64| began_us < 1_000_000;
        // Each arrival's beginning and wait. A broken-off rush left some without a last answer: they waited to its end at least.
        let waits = arrivals.iter().zip(&settled).map(|(arrival, settled)| match settled {
            Some(settled) => (settled.answered_us.saturating_sub(settled.waited_us), settled.waited_us),
            None => (micros(arrival.due), ended_us.saturating_sub(micros(arrival.due))),
        });
        let winners = measured.settled.iter().filter(|settled| settled.kind == AnswerKind::Accepted);
        let first = |settled: &&Settled| is_first(settled.answered_us.saturating_sub(settled.waited_us));

        let definite = |settled: &Option<Settled>| settled.is_some_and(|settled| settled.kind != AnswerKind::Failed);
        let of_buyers = arrivals.iter().zip(&settled).filter(|(arrival, _)| arrival.role == Role::Buyer);
        let unanswered = of_buyers.filter(|(_, settled)| !definite(settled)).map(|(arrival, _)| arrival.caller);
        let unanswered_users: Vec<String> = unanswered.map(|caller| buyers[caller].user.clone()).collect();
        let answers = measured.counts.iter().filter(|count| count.status != 0).map(|count| count.number).sum::<u64>();
        let mut mix: BTreeMap<Role, usize> = BTreeMap::new();
        let mixed_in = arrivals.iter().filter(|arrival| arrival.role != Role::Buyer);
        mixed_in.for_each(|arrival| *mix.entry(arrival.role).or_default() += 1);

        let mut report = Self {
            base: plan.base.clone(),
            sale_id: plan.sale_id,
            buyers: plan.arriving(),
            bots: plan.bots,
            connections: plan.connections.max(1),
            threads: plan.threads.clamp(1, plan.connections.max(1)),
            seed: plan.seed,
            shape: plan.shape,
            length_s: plan.length_s(),
            mix,
            rate_per_second: plan.rate_per_second(),
            arrivals: arrivals.len(),
            answers,
            retries: measured.retries,
            unanswered: unanswered_users.len(),
            orders: 0,
            stock: plan.stock,
            wrongly_accepted: 0,
            duration_ms: ended_us / 1_000,
            answers_per_second: answers as f64 * 1e6 / ended_us.max(1) as f64,
            counts: BTreeMap::new(),
            counts_by_role: BTreeMap::new(),
            all: Latency::of(waits.clone().map(|(_, waited_us)| waited_us)),
            accepted_only: Latency::of(winners.map(|settled| settled.waited_us)),
            first_second: Latency::of(waits.filter(|(began_us, _)| is_first(*began_us)).map(|(_, us)| us)),
            lag: Lag::of(measured.settled.iter()),
            first_second_lag: Lag::of(measured.settled.iter().filter(first)),
            bucket_ms: BUCKET_MS,
            timeline: Vec::new(),
            first_second_timeline: Vec::new(),
            accepted: Vec::new(),
            unanswered_users,
        };
        for count in &measured.counts {
            *report.counts.entry(label(count)).or_default() += count.number;
        }
        report.add_answers(buyers, &measured);
        arrivals.iter().for_each(|arrival| measured.timeline.at(micros(arrival.due)).arrived += 1);
        for first_us in first_promises(&measured).into_values() {
            measured.timeline.at(first_us).orders_so_far += 1;
        }
        let times = widening(measured.timeline.0.len());
        report.bucket_ms = times as u64 * BUCKET_MS;
        report.timeline = with_stock(measured.timeline.widened(times), plan.stock);
        let mut first_second = measured.timeline.0;
        first_second.truncate(1_000 / BUCKET_MS as usize);
        report.first_second_timeline = with_stock(first_second, plan.stock);
        report
    }

    /// Adds the answers to early clicks. An order promised to one of them counts like any other.
    pub(super) fn add_early(&mut self, buyers: &[Buyer], clicks: &[Arrival], measured: &Measurements) {
        *self.mix.entry(Role::EarlyClick).or_default() += clicks.len();
        self.add_answers(buyers, measured);
    }

    fn add_answers(&mut self, buyers: &[Buyer], measured: &Measurements) {
        for count in &measured.counts {
            if count.role.must_be_refused() && count.status == 202 {
                self.wrongly_accepted += count.number;
            }
            *self.counts_by_role.entry(count.role).or_default().entry(label(count)).or_default() += count.number;
        }
        for (caller, order_id) in measured.accepted.keys() {
            let accepted = Accepted { user: buyers[*caller].user.clone(), order_id: order_id.clone() };
            self.accepted.push(accepted);
        }
        self.accepted.sort();
        self.accepted.dedup();
        self.orders = self.accepted.iter().map(|accepted| &accepted.order_id).collect::<BTreeSet<_>>().len();
    }
}

/// When each order was first promised, in microseconds.
fn first_promises(measured: &Measurements) -> BTreeMap<String, u64> {
    let mut first_us: BTreeMap<String, u64> = BTreeMap::new();
    for ((_, order_id), at_us) in &measured.accepted {
        first_us.entry(order_id.clone()).and_modify(|us| *us = *at_us.min(us)).or_insert(*at_us);
    }
    first_us
}

/// How many of the finest buckets make one of the timeline: the least of 1, 2, 4, 10, 20, 40 … that gives few enough.
fn widening(buckets: usize) -> usize {
    let ladder = (0..).flat_map(|power| [1, 2, 4].map(|step| step * 10_usize.saturating_pow(power)));
    ladder.into_iter().find(|times| buckets.div_ceil(*times) <= BUCKETS_MAX).unwrap_or(usize::MAX)
}

/// Adds up the orders, and counts the stock down by them.
fn with_stock(mut timeline: Vec<Bucket>, stock: Option<u64>) -> Vec<Bucket> {
    let mut orders = 0;
    for bucket in &mut timeline {
        orders += bucket.orders_so_far;
        bucket.orders_so_far = orders;
        bucket.stock_left = stock.map(|stock| stock.saturating_sub(orders));
    }
    timeline
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

    /// The last answer to an arrival that was due at 0 and sent then.
    fn settled(arrival: usize, answered_ms: u64, kind: AnswerKind) -> Settled {
        let us = answered_ms * 1_000;
        Settled { arrival, answered_us: us, waited_us: us, lag_us: 0, own_lag_us: 0, kind }
    }

    /// Three buyers: one accepted at the second try, one sold out, one never answered; and a bot refused. `change` is made to the
    /// measurements before.
    pub(crate) fn report(change: impl FnOnce(&mut Measurements)) -> Report {
        let plan = Plan { sale_id: 1, buyers: 3, bots: 1, rate: Some(10), stock: Some(5), ..Plan::default() };
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
            measured.ended(sent_ms * 1_000, answered_ms * 1_000, kind);
        }
        measured.settled = vec![
            settled(0, 215, AnswerKind::Accepted),
            settled(1, 8, AnswerKind::SoldOut),
            settled(2, 300, AnswerKind::Failed),
            settled(3, 2, AnswerKind::Refused),
        ];
        for (role, status, code) in [
            (Role::Buyer, 503, "temporarily-unavailable"),
            (Role::Buyer, 202, ""),
            (Role::Buyer, 409, "sold-out"),
            (Role::Buyer, 0, "time-out"),
            (Role::Bot, 429, "quota-exceeded"),
        ] {
            measured.count(role, status, code, 1);
        }
        measured.promise(0, "order-a".to_owned(), 215_000);
        change(&mut measured);
        Report::compute(&plan, &buyers, &arrivals, measured)
    }

    #[test]
    fn everything_is_counted_once() {
        let report = report(|_| {});
        assert_eq!((report.answers, report.retries, report.orders, report.mix[&Role::Bot]), (4, 1, 1, 1));
        assert_eq!(report.unanswered_users, ["u2"]);
        assert_eq!(report.accepted, [Accepted { user: "u0".to_owned(), order_id: "order-a".to_owned() }]);
        assert_eq!(report.counts["503 temporarily-unavailable"], 1);
        assert_eq!(report.counts["no answer: time-out"], 1);
        assert_eq!(report.counts_by_role[&Role::Bot]["429 quota-exceeded"], 1);
        assert_eq!(report.all.as_ref().map(|latency| latency.arrivals), Some(4));
        assert_eq!(report.accepted_only.map(|latency| latency.arrivals), Some(1));
        assert_eq!((report.bucket_ms, report.timeline.len()), (25, 13));
        let first = Bucket {
            arrived: 4,
            sent: 4,
            refused: 1,
            sold_out: 1,
            failed: 1,
            stock_left: Some(5),
            ..Bucket::default()
        };
        assert_eq!(report.timeline[0], first);
        let left: Vec<_> = [7, 8, 12].map(|n| report.timeline[n].stock_left).into();
        assert_eq!(left, [Some(5), Some(4), Some(4)]);
        assert_eq!(report.first_second_timeline.last().map(|bucket| bucket.orders_so_far), Some(1));
    }

    /// The latencies of a broken-off rush include the arrivals without a last answer.
    #[test]
    fn unfinished_arrivals_have_waited_to_the_end() {
        let report = report(|measured| _ = measured.settled.remove(2));
        assert_eq!(report.all.map(|latency| (latency.arrivals, latency.max_ms.round())), Some((4, 300.0)));
        assert_eq!(report.unanswered_users, ["u2"]);
    }

    #[test]
    fn percentiles_and_buckets_are_right() {
        assert_eq!(Latency::of(std::iter::empty()), None);
        let latency = Latency::of((1..=1_000).map(|ms| ms * 1_000)).unwrap();
        for (found_ms, expected_ms) in
            [(latency.p50_ms, 500.0), (latency.p90_ms, 900.0), (latency.p99_9_ms, 999.0), (latency.max_ms, 1_000.0)]
        {
            assert!((found_ms / expected_ms - 1.0_f64).abs() < 0.001, "{found_ms} is not {expected_ms}");
        }
        for (buckets, times) in [(0, 1), (72, 1), (73, 2), (280, 4), (300, 10), (144_000, 2_000)] {
            assert_eq!(widening(buckets), times, "{buckets}");
        }
    }

    /// A crowd that was not sent as planned says so in the document and in the text, and why: its latencies include it.
    #[test]
    fn a_generator_that_falls_behind_says_so() -> Result<(), serde_json::Error> {
        let quiet = report(|_| {});
        assert!(quiet.lag.as_ref().is_some_and(|lag| !lag.fell_behind && lag.late == 0));
        assert!(!quiet.render_text().contains("behind schedule, because"));
        for (lag_us, own_lag_us, cause) in [(70_000, 60_000, "--threads"), (70_000, 1_000, "--connections")] {
            let late = report(|measured| {
                (measured.settled[1].lag_us, measured.settled[1].own_lag_us) = (lag_us, own_lag_us);
            });
            let document = serde_json::to_value(&late)?;
            for lag in ["lag", "first_second_lag"] {
                let p99_ms = document[lag]["p99_ms"].as_f64();
                assert!(p99_ms.is_some_and(|ms| (69.9..70.1).contains(&ms)), "{document}");
                assert_eq!((&document[lag]["fell_behind"], &document[lag]["late"]), (&true.into(), &1.into()));
            }
            let text = late.render_text();
            assert!(text.contains("WARNING   1 arrivals were sent more than 50 ms behind schedule, because"), "{text}");
            assert!(text.contains(cause), "{text}");
        }
        Ok(())
    }

    #[test]
    fn a_request_that_must_be_refused_and_was_accepted_is_a_fault() {
        let mut report = report(|_| {});
        assert_eq!(report.wrongly_accepted, 0);
        let mut measured = Measurements::default();
        measured.count(Role::EarlyClick, 403, "not-started", 4);
        measured.count(Role::EarlyClick, 202, "", 1);
        let click = Arrival { due: Duration::ZERO, role: Role::EarlyClick, caller: 0 };
        report.add_early(&[], &vec![click; 5], &measured);
        assert_eq!((report.wrongly_accepted, report.mix[&Role::EarlyClick]), (1, 5));
    }

    /// docs/runbooks/capacity.md reads these fields.
    #[test]
    fn the_document_leaves_the_users_out() -> Result<(), serde_json::Error> {
        let document = serde_json::to_value(report(|_| {}))?;
        assert_eq!(document["counts_by_role"]["bot"]["429 quota-exceeded"], 1);
        assert_eq!((&document["counts"]["409 sold-out"], &document["shape"]), (&1.into(), &"even".into()));
        assert!(document["first_second"]["p99_ms"].is_number() && document["accepted_only"]["p99_ms"].is_number());
        assert!(document.get("accepted").is_none());
        Ok(())
    }
}
