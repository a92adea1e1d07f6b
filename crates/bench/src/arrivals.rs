//! Purchases that arrive by a schedule, whatever the service does (an open model). wrk cannot do that, and `seckill load`
//! plays only purchases, and follows each arrival to its end. Here one thread that keeps to one processor sends whatever was
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
use crate::wrk::{Buyers, Records};

/// Connections, which are open before the first arrival, as those of a crowd that waits at a page. Who arrives while all wait for
/// answers is lost. More of them in each of several crowds would use up the ports of the one address that they come from.
const CONNECTIONS: usize = 8_000;
/// How long the last answers are waited for.
const PATIENCE: Duration = Duration::from_secs(15);
/// Arrivals that are due within this time are sent together.
const TICK: Duration = Duration::from_millis(1);
/// A generator that is later than this with one in a hundred requests cannot bring the rate.
pub const LATE_MAX: Duration = Duration::from_millis(50);
/// What is answered in this time is kept together.
pub const SLOT_MS: usize = 100;

/// From when the connections are open at this end until the crowd begins: the server takes them in meanwhile.
const TAKEN_IN: Duration = Duration::from_millis(500);

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
    /// From the first arrival to the last answer that was no 503.
    pub seconds: f64,
    /// How long those waited who were answered 202, sorted.
    pub accepted: Vec<Duration>,
    /// The generator was too slow, so that fewer arrived at a time than should have.
    pub is_late: bool,
    /// Ninety-nine in a hundred requests were sent no later than the first, by the schedule, and all no later than the second.
    pub late: (Duration, Duration),
    /// The answers over time.
    pub slots: Vec<Slot>,
}

/// What was answered within `SLOT_MS`.
#[derive(Debug, Default)]
pub struct Slot {
    /// How long those waited who were answered 202, and all others, in microseconds.
    pub accepted_us: Vec<u32>,
    pub others_us: Vec<u32>,
    /// Answers with status 503, which are among the others.
    pub unavailable: u64,
}

impl Seen {
    /// Counts an answer that came so long after the first arrival, to a buyer who waited for so long.
    fn count(&mut self, after: Duration, wait: Duration, status: u16) {
        *self.statuses.entry(status).or_default() += 1;
        let slot = after.as_millis() as usize / SLOT_MS;
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, Slot::default);
        }
        let slot = &mut self.slots[slot];
        if status == 202 {
            self.accepted.push(wait);
            slot.accepted_us.push(micros(wait));
        } else {
            slot.others_us.push(micros(wait));
            slot.unavailable += u64::from(status == 503);
        }
    }

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

/// The wait that this part of the accepted did not exceed, of those who were answered from this slot on.
pub fn wait_ms_from(slots: &[Slot], from: usize, part: f64) -> f64 {
    let mut waits: Vec<u32> = slots.iter().skip(from).flat_map(|slot| &slot.accepted_us).copied().collect();
    waits.sort_unstable();
    let at = (waits.len() as f64 * part) as usize;
    waits.get(at.min(waits.len().saturating_sub(1))).map_or(f64::NAN, |us| f64::from(*us) / 1e3)
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

/// Plays the crowd on a thread that keeps to this processor.
///
/// # Errors
/// There are too few buyers, or the system gives the thread no processor or no queue of events.
pub async fn play(processor: usize, to: SocketAddr, sale: &Sale, crowd: &Crowd<'_>) -> anyhow::Result<Seen> {
    ensure!(crowd.buyers.count >= crowd.count, "there are too few buyers");
    let (path, body) = (&sale.path, sale.body.clone());
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {to}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
        body.len()
    );
    let (count, rate, records) = (crowd.count, crowd.rate, crowd.buyers.records()?);
    let thread = move || -> anyhow::Result<Seen> {
        let mut only = CpuSet::new();
        only.set(processor);
        sched_setaffinity(None, &only)?;
        Generator { head: head.as_bytes(), records, body: body.as_bytes(), count, rate }.play(to)
    };
    tokio::task::spawn_blocking(thread).await?
}

struct Generator<'a> {
    /// The request's beginning, the same for all; the buyers' parts, which are read as they are needed; and the body, the same
    /// for all.
    head: &'a [u8],
    records: Records,
    body: &'a [u8],
    count: usize,
    rate: f64,
}

impl Generator<'_> {
    fn play(mut self, to: SocketAddr) -> anyhow::Result<Seen> {
        // No answer is given up before the crowd is.
        let time_out = Duration::from_secs_f64(self.count as f64 / self.rate) + PATIENCE;
        let bounds = Bounds { opened: CONNECTIONS, most: CONNECTIONS, time_out };
        let mut connections = Connections::open(to, bounds)?;
        std::thread::sleep(TAKEN_IN);
        let (mut seen, mut request) = (Seen::default(), Vec::new());
        let mut late_us = Vec::with_capacity(self.count);
        let (begun, rate) = (Instant::now(), self.rate);
        let due_at = |n: usize| begun + Duration::from_secs_f64(n as f64 / rate);
        let deadline = due_at(self.count) + PATIENCE;
        let (mut sent, mut done, mut last_answer) = (0, 0, begun);
        while done < self.count && Instant::now() < deadline {
            let due = ((begun.elapsed().as_secs_f64() * rate) as usize).min(self.count);
            for n in sent..due {
                late_us.push(micros(due_at(n).elapsed()));
                // An arrival without an answer is counted as lost.
                request.clear();
                [self.head, self.records.read()?, self.body]
                    .into_iter()
                    .for_each(|part| request.extend_from_slice(part));
                done += usize::from(connections.send(n, &request, Instant::now()).is_err());
            }
            sent = due;
            connections.answers(TICK, |n, answer| {
                done += 1;
                let (Ok(answer), now) = (answer, Instant::now()) else { return };
                if answer.status != 503 {
                    last_answer = now;
                }
                seen.count(now.duration_since(begun), now.duration_since(due_at(n)), answer.status);
            })?;
        }
        late_us.sort_unstable();
        let late = |us: Option<&u32>| us.map_or(Duration::ZERO, |us| Duration::from_micros(u64::from(*us)));
        seen.late = (late(late_us.get(late_us.len() * 99 / 100)), late(late_us.last()));
        seen.is_late = late_us.is_empty() || seen.late.0 > LATE_MAX;
        seen.accepted.sort_unstable();
        seen.lost = self.count as u64 - seen.statuses.values().sum::<u64>();
        seen.seconds = last_answer.duration_since(begun).as_secs_f64();
        Ok(seen)
    }
}
