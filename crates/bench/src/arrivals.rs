//! Purchases that arrive by a schedule, whatever the service does (an open model). wrk cannot do that, and `seckill load`
//! plays only purchases, and follows each arrival to its end. Here one thread with a processor to itself sends whatever was
//! prepared, over connections of the same engine, and reads of each answer the status.
//!
//! A wait counts from the moment at which the request was due, so that a generator that is late measures too much, never too
//! little.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::thread::{CpuSet, sched_setaffinity};
use seckill_load::{Bounds, Connections};

use crate::service::Sale;
use crate::wrk::Buyers;

/// Connections that are open before the first arrival. More are opened as they are needed, up to a bound.
const CONNECTIONS: usize = 2_000;
const CONNECTIONS_MAX: usize = 15_000;
/// How long the last answers are waited for.
const PATIENCE: Duration = Duration::from_secs(15);
/// Arrivals that are due within this time are sent together.
const TICK: Duration = Duration::from_millis(1);
/// A generator that is later than this with one in a hundred requests cannot bring the rate.
const LATE_MAX: Duration = Duration::from_millis(50);

/// A crowd of buyers who arrive evenly, each once.
pub struct Crowd<'a> {
    pub buyers: &'a Buyers,
    pub count: usize,
    /// Arrivals a second.
    pub rate: f64,
}

/// What a crowd got.
#[derive(Debug, Default)]
pub struct Seen {
    /// Answers by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Arrivals without an answer.
    pub lost: u64,
    /// From the first arrival to the last answer.
    pub seconds: f64,
    /// How long those waited who were answered 202, sorted.
    pub accepted: Vec<Duration>,
    /// The generator was too slow, so that fewer arrived at a time than should have.
    pub is_late: bool,
}

impl Seen {
    pub fn of_status(&self, status: u16) -> u64 {
        self.statuses.get(&status).copied().unwrap_or_default()
    }

    /// The wait that this part of the accepted did not exceed.
    pub fn wait_ms(&self, part: f64) -> f64 {
        let at = (self.accepted.len() as f64 * part) as usize;
        self.accepted
            .get(at.min(self.accepted.len().saturating_sub(1)))
            .map_or(f64::NAN, |wait| wait.as_secs_f64() * 1e3)
    }
}

/// Plays the crowd on a thread that has this processor to itself.
///
/// # Errors
/// There are too few buyers, or the system gives the thread no processor or no queue of events.
pub async fn play(processor: usize, to: SocketAddr, sale: &Sale, crowd: &Crowd<'_>) -> anyhow::Result<Seen> {
    let (records, size) = crowd.buyers.records()?;
    ensure!(records.len() >= crowd.count * size, "there are too few buyers");
    let (path, body) = (&sale.path, sale.body.clone());
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {to}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
        body.len()
    );
    let (count, rate) = (crowd.count, crowd.rate);
    let thread = move || -> anyhow::Result<Seen> {
        let mut only = CpuSet::new();
        only.set(processor);
        sched_setaffinity(None, &only)?;
        Generator { head: head.as_bytes(), records: &records, size, body: body.as_bytes(), count, rate }.play(to)
    };
    tokio::task::spawn_blocking(thread).await?
}

struct Generator<'a> {
    /// The request's beginning, the same for all; the buyers' parts, all of one size; and the body, the same for all.
    head: &'a [u8],
    records: &'a [u8],
    size: usize,
    body: &'a [u8],
    count: usize,
    rate: f64,
}

impl Generator<'_> {
    fn play(&self, to: SocketAddr) -> anyhow::Result<Seen> {
        // No answer is given up before the crowd is.
        let time_out = Duration::from_secs_f64(self.count as f64 / self.rate) + PATIENCE;
        let bounds = Bounds { opened: CONNECTIONS, most: CONNECTIONS_MAX, time_out };
        let mut connections = Connections::open(to, bounds)?;
        let (mut seen, mut request) = (Seen::default(), Vec::new());
        let mut late = Vec::with_capacity(self.count);
        let begun = Instant::now();
        let due_at = |n: usize| begun + Duration::from_secs_f64(n as f64 / self.rate);
        let deadline = due_at(self.count) + PATIENCE;
        let (mut sent, mut done, mut last_answer) = (0, 0, begun);
        while done < self.count && Instant::now() < deadline {
            let due = ((begun.elapsed().as_secs_f64() * self.rate) as usize).min(self.count);
            for n in sent..due {
                late.push(due_at(n).elapsed());
                // An arrival without an answer is counted as lost.
                let record = &self.records[n * self.size..(n + 1) * self.size];
                request.clear();
                [self.head, record, self.body].into_iter().for_each(|part| request.extend_from_slice(part));
                done += usize::from(connections.send(n, &request, Instant::now()).is_err());
            }
            sent = due;
            connections.answers(TICK, |n, answer| {
                done += 1;
                last_answer = Instant::now();
                let Ok(answer) = answer else { return };
                *seen.statuses.entry(answer.status).or_default() += 1;
                if answer.status == 202 {
                    seen.accepted.push(last_answer.duration_since(due_at(n)));
                }
            })?;
        }
        late.sort_unstable();
        seen.is_late = late.get(late.len() * 99 / 100).is_none_or(|late| *late > LATE_MAX);
        seen.accepted.sort_unstable();
        seen.lost = self.count as u64 - seen.statuses.values().sum::<u64>();
        seen.seconds = last_answer.duration_since(begun).as_secs_f64();
        Ok(seen)
    }
}
