//! Overload: more arrivals than can be served, in an open model. How many are still answered usefully, and how long do winners
//! wait?

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use redis::cmd;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::arrivals::{self, Crowd, SLOT_MS, Seen};
use crate::chart::{Axis, Chart};
use crate::crowds::settled;
use crate::processes;
use crate::series::{Series, thousands};
use crate::service::Service;
use crate::settle;
use crate::wrk::Buyers;

/// Arrivals per second with which the search for the knee begins, and what its steps multiply them by: large ones first.
const KNEE_FROM: f64 = 2_000.0;
const KNEE_STEPS: [f64; 3] = [1.25, 1.1, 1.04];
/// The knee is the highest rate of which this share has a useful answer, and of whose winners 99 % wait no longer than this.
const KNEE_SHARE: f64 = 0.99;
const KNEE_P99_MS: f64 = 200.0;
const MULTIPLES: [f64; 7] = [0.5, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0];
/// Crowds of each rate, of whose figures the medians count. While the knee is looked for, one of them must be served.
const TRIES: usize = 3;
/// Buyers in the largest crowd, which bounds its length.
pub const CROWD_MAX: usize = 600_000;
/// Between two crowds, so that what the last one left behind is not measured with the next.
const REST: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct Results {
    rates: Vec<Rate>,
    /// The first rate that the generator could not bring; larger crowds were not tried.
    too_many: Option<f64>,
}

/// A rate of arrivals, as a multiple of the knee and a second, and its crowds.
struct Rate {
    multiple: f64,
    a_second: f64,
    tries: Vec<Step>,
}

impl Rate {
    fn series(&self, figure: impl Fn(&Step) -> f64) -> Series {
        Series::of(self.tries.iter().map(figure))
    }

    fn useful(&self) -> Series {
        self.series(Step::useful)
    }

    fn wait_ms(&self, part: f64) -> Series {
        self.series(|step| step.seen.wait_ms(part))
    }
}

/// A crowd, and what it got.
struct Step {
    arrivals: usize,
    seen: Seen,
}

impl Step {
    /// Answers that told a buyer what became of the purchase, by the second.
    fn useful(&self) -> f64 {
        match self.seen.of_status(202) + self.seen.of_status(409) {
            0 => 0.0,
            useful => useful as f64 / self.seen.seconds,
        }
    }

    /// Of those who were answered after the crowd's first second: who arrives before it is known that too many have come is served.
    fn later_p99_ms(&self) -> f64 {
        arrivals::wait_ms_from(&self.seen.slots, 1000 / SLOT_MS, 0.99)
    }

    fn part(&self, answers: u64) -> f64 {
        answers as f64 / self.arrivals as f64
    }
}

pub async fn measure(
    service: &Service,
    buyers: &Buyers,
    sql: &PgPool,
    redis: &str,
    logs: &Path,
    seconds: u64,
) -> anyhow::Result<Results> {
    // A generator that shared its processor with the service would send less, the more there is to send.
    let last = std::thread::available_parallelism()?.get() - 1;
    ensure!(last > 0, "overload needs two processors at least");
    let mut processes = processes::servers().await?;
    processes.push(("server", service.process.pid));
    processes::keep_on(&format!("0-{}", last - 1), &processes).await?;
    // Once in a million winners Redis writes its file anew, which takes from the processor for seconds.
    let rewrites = set_rewrites(redis, "0")?;
    let measured = play_all(service, buyers, last, seconds).await;
    set_rewrites(redis, &rewrites)?;
    processes::keep_on(&format!("0-{last}"), &processes).await?;
    let _work = processes::work(&logs.join("work.log"), None)?;
    settled(sql).await?;
    settle::audit(&[]).await?;
    measured
}

/// By how many percent Redis's append-only file grows before Redis writes it anew; 0: it never does. Returns what it was before.
fn set_rewrites(redis: &str, percent: &str) -> anyhow::Result<String> {
    const SETTING: &str = "auto-aof-rewrite-percentage";
    let mut redis = redis::Client::open(redis)?.get_connection()?;
    let (_, before): (String, String) = cmd("CONFIG").arg("GET").arg(SETTING).query(&mut redis)?;
    cmd("CONFIG").arg("SET").arg(SETTING).arg(percent).query::<()>(&mut redis)?;
    Ok(before)
}

async fn play_all(service: &Service, buyers: &Buyers, processor: usize, seconds: u64) -> anyhow::Result<Results> {
    let mut knee = KNEE_FROM;
    for step in KNEE_STEPS {
        while is_served(service, buyers, processor, knee * step, seconds).await? {
            knee *= step;
        }
    }
    let mut results = Results::default();
    // All rates, and then all again: a machine that is slow for a minute is so at one try of a rate only.
    for _ in 0..TRIES {
        for (nth, multiple) in MULTIPLES.into_iter().enumerate() {
            let a_second = knee * multiple;
            let step = play(service, buyers, processor, a_second, seconds).await?;
            if step.seen.is_late {
                if nth == results.rates.len() {
                    results.too_many = Some(a_second);
                }
                break;
            }
            match results.rates.get_mut(nth) {
                Some(rate) => rate.tries.push(step),
                None => {
                    results.too_many = None;
                    results.rates.push(Rate { multiple, a_second, tries: vec![step] });
                }
            }
        }
    }
    Ok(results)
}

/// Whether nearly all of so many arrivals a second are answered usefully and soon, at one of the tries: at another one something else may
/// have held up the processor.
async fn is_served(
    service: &Service,
    buyers: &Buyers,
    processor: usize,
    rate: f64,
    seconds: u64,
) -> anyhow::Result<bool> {
    for _ in 0..TRIES {
        let step = play(service, buyers, processor, rate, seconds.min(4)).await?;
        let useful = step.part(step.seen.of_status(202) + step.seen.of_status(409));
        if !step.seen.is_late && useful >= KNEE_SHARE && step.seen.wait_ms(0.99) <= KNEE_P99_MS {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Arrivals at this rate who do not try again.
async fn play(service: &Service, buyers: &Buyers, processor: usize, rate: f64, seconds: u64) -> anyhow::Result<Step> {
    let count = ((rate * seconds as f64) as usize).min(CROWD_MAX);
    let sale = service.sale(count.cast_signed() as i64).await?;
    tokio::time::sleep(REST).await;
    let seen = arrivals::play(processor, service.process.address, &sale, &Crowd { buyers, count, rate }).await?;
    let step = Step { arrivals: count, seen };
    let (useful, p50, p99) = (thousands(step.useful()), step.seen.wait_ms(0.5), step.seen.wait_ms(0.99));
    let Seen { statuses, lost, .. } = &step.seen;
    eprintln!(
        "{} arrivals a second: {useful} useful, p50 and p99 of winners {p50:.0} and {p99:.0} ms; {statuses:?}, {lost} lost",
        thousands(rate)
    );
    Ok(step)
}

impl Results {
    pub fn markdown(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "The generator has a processor of its own; the service and its servers have the others. Redis does not write its file anew \
             meanwhile. Medians of {TRIES} crowds, and least and most.\n\n\
             | arrivals, of the knee | a second | useful answers a second | of the best | p50 ms of winners | p99 ms of winners | \
             p99 after the first second | shed | lost |\n|---|---|---|---|---|---|---|---|---|"
        );
        let best = self.rates.iter().map(|rate| rate.useful().median()).fold(0.0, f64::max);
        let ms = |ms: f64| format!("{ms:.0}");
        for rate in &self.rates {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:.2} | {:.0} | {} | {} | {:.0} % | {:.1} % |",
                rate.multiple,
                thousands(rate.a_second),
                rate.useful().with_range(thousands),
                rate.useful().median() / best,
                rate.wait_ms(0.5).median(),
                rate.wait_ms(0.99).with_range(ms),
                rate.series(Step::later_p99_ms).with_range(ms),
                100.0 * rate.series(|step| step.part(step.seen.of_status(503))).median(),
                100.0 * rate.series(|step| step.part(step.seen.lost)).median(),
            );
        }
        if let Some(rate) = self.too_many {
            let _ =
                writeln!(text, "\nThe generator's processor is too slow for {} arrivals a second.", thousands(rate));
        }
        let of = |figure: &dyn Fn(&Rate) -> f64| self.rates.iter().map(figure).collect::<Vec<f64>>();
        let chart = Chart {
            title: "Useful answers a second (line) of so many arrivals (bars)".to_owned(),
            x: Axis::Names("times the knee", self.rates.iter().map(|rate| rate.multiple.to_string()).collect()),
            y: "a second",
            bars: of(&|rate| rate.a_second),
            line: of(&|rate| rate.useful().median()),
        };
        let _ = write!(text, "\n{chart}");
    }

    pub fn json(&self) -> Value {
        let crowd = |step: &Step| {
            json!({
                "arrivals": step.arrivals, "seconds": step.seen.seconds, "statuses": step.seen.statuses, "lost": step.seen.lost,
                "useful_a_second": step.useful(), "p50_ms": step.seen.wait_ms(0.5), "p99_ms": step.seen.wait_ms(0.99),
                "later_p99_ms": step.later_p99_ms(),
            })
        };
        let rates = self.rates.iter().map(|rate| {
            json!({
                "times_the_knee": rate.multiple, "rate": rate.a_second,
                "useful_a_second": rate.useful().json(), "p99_ms": rate.wait_ms(0.99).json(),
                "crowds": rate.tries.iter().map(crowd).collect::<Vec<_>>(),
            })
        });
        json!({ "rates": rates.collect::<Vec<_>>(), "too_many_for_the_generator": self.too_many })
    }
}
