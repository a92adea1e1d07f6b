//! Purchases that arrive by a schedule, whatever the service does (an open model). wrk cannot do that, and `seckill load`
//! follows each arrival to its end. Here one thread on one processor sends prepared requests, over connections of the same
//! engine as `seckill load`, and reads the status of each answer.
//!
//! A wait counts from the moment at which the request was due: a late generator measures too much, never too little.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::thread::{CpuSet, sched_setaffinity};
use seckill_load::{Bounds, Connections};

use crate::series::percentile_ms;
use crate::service::Sale;
use crate::wrk::{RecordFile, Records};

/// Connections, open before the first arrival, as in a crowd with the page open. An arrival that finds all of them
/// busy is lost. With more, several crowds would use up the ports of the one address that they come from.
const CONNECTIONS: usize = 8_000;
const PATIENCE: Duration = Duration::from_secs(15);
/// Arrivals that are due within this time are sent together.
const TICK: Duration = Duration::from_millis(1);
/// A generator with a p99 above this cannot send at the rate.
pub(crate) const LATE_MAX_MS: f64 = 50.0;
/// From opening the connections until the crowd begins: the server accepts them meanwhile.
const TAKEN_IN: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub answers: Vec<Answer>,
    /// Arrivals without an answer.
    pub lost: u64,
    /// From the first arrival to the last answer other than a 503.
    pub seconds: f64,
    /// How late requests were sent, in ms.
    pub late_p99_ms: f64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub status: u16,
    /// When it came, counted from the first arrival.
    pub after_ms: u32,
    /// How long the buyer waited.
    pub wait_us: u32,
}

impl Seen {
    pub(crate) fn of_status(&self, status: u16) -> u64 {
        self.answers.iter().filter(|answer| answer.status == status).count() as u64
    }

    /// Answers that told a buyer what became of the purchase.
    pub(crate) fn useful(&self) -> u64 {
        self.of_status(202) + self.of_status(409)
    }

    /// The generator was too slow, so that fewer arrived at a time than should have.
    pub(crate) fn is_late(&self) -> bool {
        self.late_p99_ms > LATE_MAX_MS
    }
}

/// How long these buyers waited, in microseconds, sorted.
pub(crate) fn waits<'a>(answers: impl Iterator<Item = &'a Answer>) -> Vec<u32> {
    let mut waits: Vec<u32> = answers.map(|answer| answer.wait_us).collect();
    waits.sort_unstable();
    waits
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

/// Plays a crowd of so many buyers, who arrive evenly, `rate` a second, each once. The generator's thread keeps to this processor.
pub(crate) async fn play(
    processor: usize,
    to: SocketAddr,
    sale: &Sale,
    buyers: &RecordFile,
    count: usize,
    rate: f64,
) -> anyhow::Result<Seen> {
    ensure!(buyers.count >= count, "there are too few buyers");
    let (path, body, records) = (&sale.path, sale.body.clone(), buyers.records()?);
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {to}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
        body.len()
    );
    let thread = move || -> anyhow::Result<Seen> {
        let mut only = CpuSet::new();
        only.set(processor);
        sched_setaffinity(None, &only)?;
        generate(to, head.as_bytes(), records, body.as_bytes(), count, rate)
    };
    tokio::task::spawn_blocking(thread).await?
}

fn generate(
    to: SocketAddr,
    head: &[u8],
    mut records: Records,
    body: &[u8],
    count: usize,
    rate: f64,
) -> anyhow::Result<Seen> {
    // No answer is given up before the crowd is.
    let time_out = Duration::from_secs_f64(count as f64 / rate) + PATIENCE;
    let bounds = Bounds { opened: CONNECTIONS, most: CONNECTIONS, time_out };
    let mut connections = Connections::open(to, bounds)?;
    std::thread::sleep(TAKEN_IN);
    let mut seen = Seen { answers: Vec::with_capacity(count), ..Seen::default() };
    let mut request = Vec::new();
    let mut late_us = Vec::with_capacity(count);
    let begun = Instant::now();
    let due_at = |n: usize| begun + Duration::from_secs_f64(n as f64 / rate);
    let deadline = due_at(count) + PATIENCE;
    let (mut sent, mut done, mut last_answer) = (0, 0, begun);
    while done < count && Instant::now() < deadline {
        let due = ((begun.elapsed().as_secs_f64() * rate) as usize).min(count);
        for n in sent..due {
            late_us.push(micros(due_at(n).elapsed()));
            // An arrival without an answer is counted as lost.
            request.clear();
            [head, records.read()?, body].into_iter().for_each(|part| request.extend_from_slice(part));
            done += usize::from(connections.send(n, &request, Instant::now()).is_err());
        }
        sent = due;
        connections.answers(TICK, |n, answer| {
            done += 1;
            let (Ok(answer), now) = (answer, Instant::now()) else { return };
            if answer.status != 503 {
                last_answer = now;
            }
            let (after, wait_us) = (now.duration_since(begun), micros(now.duration_since(due_at(n))));
            seen.answers.push(Answer { status: answer.status, after_ms: after.as_millis() as u32, wait_us });
        })?;
    }
    late_us.sort_unstable();
    seen.late_p99_ms = percentile_ms(&late_us, 0.99);
    seen.lost = (count - seen.answers.len()) as u64;
    seen.seconds = last_answer.duration_since(begun).as_secs_f64();
    Ok(seen)
}
