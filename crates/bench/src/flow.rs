//! Flow control: limiters in Redis, and permits over HTTP, compared with a public limiter server.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::limiter_scripts;
use crate::permits::{self, CALLERS, Scenario, Servers};
use crate::series::thousands;
use crate::service::Service;
use crate::throttlecrab::Throttlecrab;

const ROUNDS: usize = 3;
/// A round has twenty cases, so each is short: the bench ends within minutes.
const SECONDS_MAX: u64 = 1;

pub struct Results {
    seconds: u64,
    permits: Vec<permits::Measured>,
    limiters: Vec<limiter_scripts::Measured>,
}

/// Measures permits over HTTP.
pub async fn over_http(
    service: &Service,
    servers: &[(&'static str, u32)],
    other: Option<&Throttlecrab>,
    redis: &str,
    seconds: u64,
) -> anyhow::Result<Results> {
    let seconds = seconds.min(SECONDS_MAX);
    let compared = Servers::prepare(service, servers, other, redis).await?;
    Ok(Results { seconds, permits: permits::measure(compared, ROUNDS, seconds).await?, limiters: Vec::new() })
}

impl Results {
    /// Measures the limiters in Redis, which nothing else uses now. Its data is lost.
    pub async fn measure_scripts(&mut self, redis: &str, other: Option<&Throttlecrab>) -> anyhow::Result<()> {
        self.limiters = limiter_scripts::measure(redis, other, ROUNDS).await?;
        Ok(())
    }

    pub fn markdown(&self, text: &mut String) {
        self.limiters_alone(text);
        self.by_callers(text);
        text.push_str(
            "\nThe same programs measure throttlecrab-server 0.4 on the same machine, over HTTP (`POST /throttle`) and \
             Redis's protocol (`THROTTLE`). That server does less: one process counts in its own memory, without \
             authentication, and its counters end with the process. Our counters are in Redis, all instances share them, \
             and they survive an instance; a check over HTTP looks up the application's token and its policy, and asks \
             Redis once.\n",
        );
    }

    fn limiters_alone(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\n| checks a second by redis-benchmark, 50 connections, {ROUNDS} rounds | one key | 16 in flight each | 100,000 \
             keys | 16 in flight each |\n|---|---|---|---|---|"
        );
        for m in &self.limiters {
            let _ = write!(text, "| {} |", m.target.title());
            match &m.rates {
                Some(rates) => rates.iter().for_each(|rate| _ = write!(text, " {} |", rate.with_range(thousands))),
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
        for scenario in Scenario::ALL {
            let _ = write!(text, "| {} |", scenario.title());
            let of: Vec<_> = self.permits.iter().filter(|m| m.scenario == scenario && !m.rounds.is_empty()).collect();
            of.iter().for_each(|m| _ = write!(text, " {} |", m.rate().with_range(thousands)));
            let Some(last) = of.last() else {
                text.push_str(" not installed | | | | | | |\n");
                continue;
            };
            for figure in [|round: &permits::Round| round.seen.p50_us, |round: &permits::Round| round.seen.p99_us] {
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
            "limiters": limiter_scripts::json(&self.limiters),
            "callers": permits::json(&self.permits),
        })
    }
}
