//! What a rush looked like: answers, waits, and how busy each part was.

use serde::Serialize;

use crate::engine::{Engine, Nanos, SECOND, seconds};
use crate::waits::{WaitCounts, Waits};

/// The kinds of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The load generator, which is on the same machine when the bench is simulated.
    Client,
    Balancer,
    Serve,
    Redis,
    Postgres,
    Broker,
    Work,
}

impl Part {
    pub const ALL: [Self; 7] =
        [Self::Client, Self::Balancer, Self::Serve, Self::Redis, Self::Postgres, Self::Broker, Self::Work];

    pub fn title(self) -> &'static str {
        match self {
            Self::Client => "load generator",
            Self::Balancer => "load balancers",
            Self::Serve => "`serve`",
            Self::Redis => "Redis masters",
            Self::Postgres => "PostgreSQL's primary",
            Self::Broker => "RabbitMQ's leader",
            Self::Work => "`work`",
        }
    }
}

/// What a buyer is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// 200 of the hello-world server.
    Hello,
    Accepted,
    /// Sold out, without asking Redis.
    SoldOut,
    /// Sold out, after all shards were asked that were not known to be empty.
    SoldOutByRedis,
    /// 503: shed, or too many wait for their commit.
    Unavailable,
}

/// How busy the processors of a part were, as shares.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Usage {
    pub part: Part,
    pub cores: u32,
    /// Until the last answer.
    pub mean: f64,
    /// In the busiest tenth of a second.
    pub peak: f64,
    /// Tenths of a second in which the part had no room: 95 % busy or more.
    pub full_tenths: u64,
}

/// What came of a rush. All arrivals are answered: `arrivals` is the sum of the kinds of answers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    pub arrivals: u64,
    pub hello: u64,
    pub accepted: u64,
    pub sold_out_from_memory: u64,
    pub sold_out_by_redis: u64,
    /// 503.
    pub unavailable: u64,
    /// From the beginning to the last answer.
    pub seconds: f64,
    pub answers_a_second: f64,
    /// When the last unit was taken.
    pub sold_out_after_s: Option<f64>,
    /// How long the answers of winners took, and those of buyers who heard "sold out" (or of hello-world). Not those of 503s.
    pub winners: Waits,
    pub losers: Waits,
    pub buyers_a_call: f64,
    pub winners_a_commit: f64,
    pub usage: Vec<Usage>,
    pub settled: u64,
    /// From the beginning to the last settled order; `None` if nothing is settled.
    pub settled_after_s: Option<f64>,
    pub settled_a_second: f64,
}

impl Outcome {
    pub fn usage_of(&self, part: Part) -> Option<&Usage> {
        self.usage.iter().find(|usage| usage.part == part)
    }

    /// The part that had no room for the longest; where none was full, the busiest.
    pub fn bends_first(&self) -> Option<&Usage> {
        let ours = self.usage.iter().filter(|usage| usage.part != Part::Client);
        ours.max_by(|a, b| a.full_tenths.cmp(&b.full_tenths).then(a.peak.total_cmp(&b.peak)))
    }
}

/// How often the parts are looked at.
pub(super) const LOOK: Nanos = SECOND / 10;
/// A part is full that is so busy.
const FULL: f64 = 0.95;

/// Collects what happens while the rush is played.
#[derive(Default)]
pub(super) struct Seen {
    pub arrivals: u64,
    pub sold_out_at: Option<Nanos>,
    /// Calls to Redis and their buyers; commits and their winners.
    pub calls: u64,
    pub called: u64,
    pub commits: u64,
    pub committed: u64,
    /// The answers, in the order of `Answer`.
    answers: [u64; 5],
    winners: WaitCounts,
    losers: WaitCounts,
    last_answer: Nanos,
    /// By part: processor time at the last answer and at the last look, the most between two looks, and how often it was full.
    busy_at_last: [Nanos; 7],
    busy_before: [Nanos; 7],
    peak: [Nanos; 7],
    full_tenths: [u64; 7],
}

impl Seen {
    /// Notes an answer, after this wait.
    pub fn answer<S>(&mut self, answer: Answer, wait: Nanos, engine: &Engine<S>) {
        self.answers[answer as usize] += 1;
        match answer {
            Answer::Accepted => self.winners.record(wait),
            Answer::Hello | Answer::SoldOut | Answer::SoldOutByRedis => self.losers.record(wait),
            Answer::Unavailable => {}
        }
        self.last_answer = engine.now();
    }

    /// Notes how much processor time the parts had used when the last buyer was answered.
    pub fn end<S>(&mut self, engine: &Engine<S>) {
        self.busy_at_last = std::array::from_fn(|part| engine.busy(part));
    }

    /// Looks at how busy the parts have been since the last look.
    pub fn look<S>(&mut self, engine: &Engine<S>, cores: &[u32; 7]) {
        for (part, cores) in cores.iter().enumerate() {
            let busy = engine.busy(part) - self.busy_before[part];
            self.busy_before[part] += busy;
            self.peak[part] = self.peak[part].max(busy);
            let full = FULL * LOOK as f64 * f64::from(*cores);
            self.full_tenths[part] += u64::from(*cores > 0 && busy as f64 >= full);
        }
    }

    /// The outcome, without what was settled.
    pub fn outcome(&self, cores: &[u32; 7]) -> Outcome {
        let ran = seconds(self.last_answer);
        let a_second = |count: u64| if ran > 0.0 { count as f64 / ran } else { 0.0 };
        let usage = |(at, part): (usize, Part)| {
            let all = f64::from(cores[at]);
            let share = |busy: Nanos, of_s: f64| if all * of_s > 0.0 { seconds(busy) / (all * of_s) } else { 0.0 };
            Usage {
                part,
                cores: cores[at],
                mean: share(self.busy_at_last[at], ran),
                peak: share(self.peak[at], seconds(LOOK)),
                full_tenths: self.full_tenths[at],
            }
        };
        let [hello, accepted, sold_out_from_memory, sold_out_by_redis, unavailable] = self.answers;
        Outcome {
            arrivals: self.arrivals,
            hello,
            accepted,
            sold_out_from_memory,
            sold_out_by_redis,
            unavailable,
            seconds: ran,
            answers_a_second: a_second(self.answers.iter().sum()),
            sold_out_after_s: self.sold_out_at.map(seconds),
            winners: self.winners.waits(),
            losers: self.losers.waits(),
            buyers_a_call: self.called as f64 / self.calls.max(1) as f64,
            winners_a_commit: self.committed as f64 / self.commits.max(1) as f64,
            usage: Part::ALL.into_iter().enumerate().filter(|(at, _)| cores[*at] > 0).map(usage).collect(),
            settled: 0,
            settled_after_s: None,
            settled_a_second: 0.0,
        }
    }
}
