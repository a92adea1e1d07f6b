//! Tests of deadlines on a machine that is busy, or that stops now and then.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

/// The span of the first try. The last try has a span of eight times this length.
const SPAN: Duration = Duration::from_secs(2);
/// A machine that was idle for this share of the time, in per cent, is not to blame for a failure.
const IDLE: f64 = 75.0;

/// Runs a test whose deadlines are parts of a span of time. After a failure on a busy machine, or one that stopped, it runs the test
/// again with twice the span, up to 16 s.
pub async fn in_time(test: impl AsyncFn(Duration)) {
    let mut span = SPAN;
    loop {
        let machine = Machine::now();
        let mut running = pin!(test(span));
        let ended = std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(cx))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        });
        let Err(panic) = ended.await else { return };
        let idle = machine.idle_since();
        if idle > IDLE || span >= SPAN * 8 {
            resume_unwind(panic);
        }
        span *= 2;
        eprintln!("the machine was {idle:.0} % idle: once more with {span:?}");
    }
}

/// How long the processors that this process may use were idle, over all programs.
pub struct Machine {
    at: Instant,
    processors: usize,
    /// In hundredths of a second, as Linux counts them.
    idle: u64,
}

impl Machine {
    pub fn now() -> Self {
        let (stat, allowed) = (std::fs::read_to_string("/proc/stat").unwrap(), processors());
        let idle = |line: &str| {
            let mut words = line.split_whitespace();
            let number = words.next()?.strip_prefix("cpu")?.parse::<u32>().ok()?;
            allowed.contains(&number).then(|| words.nth(3))??.parse::<u64>().ok()
        };
        Self { at: Instant::now(), processors: allowed.len(), idle: stat.lines().filter_map(idle).sum() }
    }

    /// The share of the time since then in which the processors were idle, in per cent. A machine that stopped was not idle.
    pub fn idle_since(&self) -> f64 {
        let now = Self::now();
        now.idle.saturating_sub(self.idle) as f64 / ((now.at - self.at).as_secs_f64() * self.processors as f64)
    }
}

/// The numbers of the processors that this process may use, such as of "0-1,4".
fn processors() -> Vec<u32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<u32>().unwrap()..=last.parse().unwrap()
    };
    list.split(',').flat_map(range).collect()
}
