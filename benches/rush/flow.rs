//! Flow control's part of the bench: limiters in Redis, and permits over HTTP, beside a public limiter server.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::callers::{self, CALLERS, Counter, Way};
use crate::limiters;
use crate::medians::thousands;
use crate::service::Service;
use crate::throttlecrab::Throttlecrab;

const ROUNDS: usize = 3;
/// There are twenty cases a round: the bench is to end within minutes.
const SECONDS_MAX: u64 = 1;

pub struct Found {
    seconds: u64,
    callers: Vec<callers::Measured>,
    limiters: Vec<limiters::Measured>,
}

/// What is asked over HTTP.
pub async fn over_http(
    service: &Service,
    servers: &[(&'static str, u32)],
    other: Option<&Throttlecrab>,
    redis: &str,
    seconds: u64,
) -> anyhow::Result<Found> {
    let seconds = seconds.min(SECONDS_MAX);
    let counter = Counter::set(service, servers, other, redis).await?;
    Ok(Found { seconds, callers: callers::measure(counter, ROUNDS, seconds).await?, limiters: Vec::new() })
}

impl Found {
    /// Limiters in Redis, which has nobody else to serve now; what it holds goes.
    pub async fn ask_redis(&mut self, redis: &str, other: Option<&Throttlecrab>) -> anyhow::Result<()> {
        self.limiters = limiters::measure(redis, other, ROUNDS).await?;
        Ok(())
    }

    pub fn markdown(&self, text: &mut String) {
        self.limiters_alone(text);
        self.by_callers(text);
        text.push_str(
            "\nthrottlecrab-server 0.4 (crates.io) is asked by the same programs on the same machine, over HTTP (`POST \
             /throttle`) and Redis's protocol (`THROTTLE`). It does less: one process that counts in its own memory, for \
             whoever reaches it; its counters end with it and are nobody else's. Ours are in Redis, one for all instances, \
             and survive them; a check over HTTP looks up the application's token and its policy, and Redis is asked once.\n",
        );
    }

    fn limiters_alone(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\n| checks a second by redis-benchmark, 50 connections, {ROUNDS} rounds | one key | 16 in flight each | 100,000 \
             keys | 16 in flight each |\n|---|---|---|---|---|"
        );
        for m in &self.limiters {
            let _ = write!(text, "| {} |", m.asked.title());
            match &m.rates {
                Some(rates) => rates.iter().for_each(|rate| _ = write!(text, " {} |", rate.in_words(thousands))),
                None => text.push_str(" not installed | | | |"),
            }
            text.push('\n');
        }
    }

    fn by_callers(&self, text: &mut String) {
        let _ = write!(
            text,
            "\n| checks a second over HTTP, {ROUNDS} rounds of {} s; callers in parallel: |",
            self.seconds
        );
        CALLERS.iter().for_each(|callers| _ = write!(text, " {callers} |"));
        text.push_str(" p50 ms | p99 ms | CPU µs: server, Redis, wrk |\n|---|---|---|---|---|---|---|---|\n");
        for way in Way::ALL {
            let _ = write!(text, "| {} |", way.title());
            let of: Vec<_> = self.callers.iter().filter(|m| m.way == way && !m.rounds.is_empty()).collect();
            of.iter().for_each(|m| _ = write!(text, " {} |", m.rate().in_words(thousands)));
            let Some(last) = of.last() else {
                text.push_str(" not installed | | | | | | |\n");
                continue;
            };
            for figure in [|round: &callers::Round| round.seen.p50_us, |round: &callers::Round| round.seen.p99_us] {
                let ms = of.iter().map(|m| format!("{:.2}", m.series(|round| figure(round) as f64 / 1000.0).median()));
                let _ = write!(text, " {} |", ms.collect::<Vec<_>>().join(", "));
            }
            let cpu = ["server", "redis", "wrk"].map(|process| format!("{:.1}", last.cpu_us(process).median()));
            let _ = writeln!(text, " {} |", cpu.join(", "));
        }
        let _ = writeln!(
            text,
            "\nThe columns of milliseconds: by callers, in the same order. The last: microseconds a check with {} callers.",
            CALLERS[CALLERS.len() - 1]
        );
    }

    pub fn json(&self) -> Value {
        json!({
            "rounds": ROUNDS,
            "seconds": self.seconds,
            "limiters": limiters::json(&self.limiters),
            "callers": callers::json(&self.callers),
        })
    }
}
