//! Purchases that arrive by a schedule, whatever the service does (an open model). wrk cannot do that, and `seckill load` uses a
//! complete HTTP client, which takes more of a processor than the service itself. Here each request is prepared, one thread
//! writes it to a kept connection that is free, or to a new one, and of the answer it reads the status and the length.
//!
//! A wait counts from the moment at which the request was due, so that a generator that is late measures too much, never too
//! little.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use crate::service::Sale;
use crate::wrk::Buyers;

/// Connections that are open before the first arrival, at most: as many as arrive in two seconds, so that none is idle for long
/// enough to be closed. And the most at any time.
const CONNECTIONS: usize = 6_000;
const CONNECTIONS_MAX: usize = 15_000;
/// How long the last answers are waited for.
const PATIENCE: Duration = Duration::from_secs(15);
/// The longest answer.
const ANSWER_MAX: usize = 4_096;
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
/// The service cannot be connected to.
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
        let generator = Generator {
            to,
            head,
            records,
            size,
            body,
            idle: RefCell::default(),
            open: Cell::default(),
            answered: Cell::default(),
            last_answer: Cell::default(),
            late: RefCell::default(),
            seen: RefCell::default(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(LocalSet::new().run_until(Rc::new(generator).play(count, rate)))
    };
    tokio::task::spawn_blocking(thread).await?
}

struct Generator {
    to: SocketAddr,
    /// The request's beginning, the same for all; a buyer's part; and the body, the same for all.
    head: String,
    records: Vec<u8>,
    size: usize,
    body: String,
    /// The one that has been idle for longest is used first.
    idle: RefCell<VecDeque<TcpStream>>,
    open: Cell<usize>,
    answered: Cell<usize>,
    last_answer: Cell<Option<Instant>>,
    late: RefCell<Vec<Duration>>,
    seen: RefCell<Seen>,
}

impl Generator {
    async fn play(self: Rc<Self>, count: usize, rate: f64) -> anyhow::Result<Seen> {
        for _ in 0..CONNECTIONS.min((2.0 * rate) as usize) {
            let stream = self.connect().await?;
            self.idle.borrow_mut().push_back(stream);
        }
        let begun = Instant::now();
        let due_at = |n: usize| begun + Duration::from_secs_f64(n as f64 / rate);
        let mut sent = 0;
        while sent < count {
            let due = ((begun.elapsed().as_secs_f64() * rate) as usize).min(count);
            for n in sent..due {
                tokio::task::spawn_local(Rc::clone(&self).buy(n, due_at(n)));
            }
            sent = due;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let deadline = Instant::now() + PATIENCE;
        while self.answered.get() < count && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut late = self.late.take();
        late.sort_unstable();
        let late = late.get(late.len() * 99 / 100).copied().unwrap_or_default();
        let mut seen = self.seen.take();
        seen.is_late = late > LATE_MAX;
        seen.accepted.sort_unstable();
        seen.lost = count as u64 - seen.statuses.values().sum::<u64>();
        seen.seconds = self.last_answer.get().unwrap_or(begun).duration_since(begun).as_secs_f64();
        Ok(seen)
    }

    async fn connect(&self) -> anyhow::Result<TcpStream> {
        ensure!(self.open.get() < CONNECTIONS_MAX, "{CONNECTIONS_MAX} connections are open");
        self.open.set(self.open.get() + 1);
        let stream = TcpStream::connect(self.to).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn buy(self: Rc<Self>, n: usize, due: Instant) {
        self.late.borrow_mut().push(due.elapsed());
        let answer = self.ask(n).await;
        self.answered.set(self.answered.get() + 1);
        self.last_answer.set(Some(Instant::now()));
        // An arrival without an answer is counted as lost.
        let Ok(status) = answer else { return };
        let mut seen = self.seen.borrow_mut();
        *seen.statuses.entry(status).or_default() += 1;
        if status == 202 {
            seen.accepted.push(due.elapsed());
        }
    }

    async fn ask(&self, n: usize) -> anyhow::Result<u16> {
        let idle = self.idle.borrow_mut().pop_front();
        let mut stream = match idle {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        let record = &self.records[n * self.size..(n + 1) * self.size];
        let request = [self.head.as_bytes(), record, self.body.as_bytes()].concat();
        stream.write_all(&request).await?;
        let mut answer = request;
        answer.clear();
        loop {
            ensure!(stream.read_buf(&mut answer).await? > 0, "the connection was closed");
            if let Some((status, length)) = read_head(&answer)? {
                ensure!(length <= ANSWER_MAX, "an answer of {length} bytes");
                if answer.len() >= length {
                    self.idle.borrow_mut().push_back(stream);
                    return Ok(status);
                }
            }
        }
    }
}

/// The status of an answer, and its length with the head; `None` while the head is not complete.
fn read_head(answer: &[u8]) -> anyhow::Result<Option<(u16, usize)>> {
    let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&answer[..end])?;
    let status = head.get(9..12).context("no status")?.parse()?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).context("no length")?;
    Ok(Some((status, end + 4 + length.parse::<usize>()?)))
}
