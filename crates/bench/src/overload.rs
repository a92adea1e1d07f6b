//! Overload: more arrivals than can be served, in an open model. How many are still answered usefully, and how long do winners
//! wait?

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::arrivals::{self, Crowd, SLOT_MS, Seen};
use crate::chart::{Axis, Chart};
use crate::crowds::settled;
use crate::processes;
use crate::series::thousands;
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
/// Buyers in the largest crowd, which bounds its length.
pub const CROWD_MAX: usize = 600_000;
/// Between two crowds, so that what the last one left behind is not measured with the next.
const REST: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct Results {
    /// By multiples of the knee.
    crowds: Vec<(f64, Step)>,
    /// The first rate that the generator could not bring; larger crowds were not tried.
    too_many: Option<f64>,
}

/// A crowd, and what it got.
struct Step {
    arrivals: usize,
    rate: f64,
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
    logs: &Path,
    seconds: u64,
) -> anyhow::Result<Results> {
    // A generator that shared its processor with the service would send less, the more there is to send.
    let last = std::thread::available_parallelism()?.get() - 1;
    ensure!(last > 0, "overload needs two processors at least");
    let mut processes = processes::servers().await?;
    processes.push(("server", service.process.pid));
    processes::keep_on(&format!("0-{}", last - 1), &processes).await?;
    let measured = play_all(service, buyers, last, seconds).await;
    processes::keep_on(&format!("0-{last}"), &processes).await?;
    let _work = processes::work(&logs.join("work.log"), None)?;
    settled(sql).await?;
    settle::audit(&[]).await?;
    measured
}

async fn play_all(service: &Service, buyers: &Buyers, processor: usize, seconds: u64) -> anyhow::Result<Results> {
    let mut knee = KNEE_FROM;
    for step in KNEE_STEPS {
        // A rate is tried twice: something else may have held up the processor.
        while is_served(service, buyers, processor, knee * step, seconds).await?
            || is_served(service, buyers, processor, knee * step, seconds).await?
        {
            knee *= step;
        }
    }
    let mut results = Results::default();
    // All rates, and then all again: a machine that is slow for a minute is so at one of the two tries only.
    for _ in 0..2 {
        for (nth, multiple) in MULTIPLES.into_iter().enumerate() {
            let step = play(service, buyers, processor, knee * multiple, seconds).await?;
            if step.seen.is_late {
                if nth == results.crowds.len() {
                    results.too_many = Some(step.rate);
                }
                break;
            }
            match results.crowds.get_mut(nth) {
                Some((_, best)) if best.useful() >= step.useful() => {}
                Some((_, best)) => *best = step,
                None => {
                    results.too_many = None;
                    results.crowds.push((multiple, step));
                }
            }
        }
    }
    Ok(results)
}

/// Whether nearly all of so many arrivals a second are answered usefully and soon.
async fn is_served(
    service: &Service,
    buyers: &Buyers,
    processor: usize,
    rate: f64,
    seconds: u64,
) -> anyhow::Result<bool> {
    let step = play(service, buyers, processor, rate, seconds.min(4)).await?;
    let useful = step.part(step.seen.of_status(202) + step.seen.of_status(409));
    Ok(!step.seen.is_late && useful >= KNEE_SHARE && step.seen.wait_ms(0.99) <= KNEE_P99_MS)
}

/// Arrivals at this rate who do not try again.
async fn play(service: &Service, buyers: &Buyers, processor: usize, rate: f64, seconds: u64) -> anyhow::Result<Step> {
    let count = ((rate * seconds as f64) as usize).min(CROWD_MAX);
    let sale = service.sale(count.cast_signed() as i64).await?;
    tokio::time::sleep(REST).await;
    let seen = arrivals::play(processor, service.process.address, &sale, &Crowd { buyers, count, rate }).await?;
    let step = Step { arrivals: count, rate, seen };
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
            "The generator has a processor of its own; the service and its servers have the others. The better of two tries \
             counts.\n\n\
             | arrivals, of the knee | a second | useful answers a second | of the best | p50, p99 ms of winners | p99 after the \
             first second | shed | lost |\n|---|---|---|---|---|---|---|---|"
        );
        let best = self.crowds.iter().map(|(_, step)| step.useful()).fold(0.0, f64::max);
        for (multiple, step) in &self.crowds {
            let _ = writeln!(
                text,
                "| {multiple} | {} | {} | {:.2} | {:.0}, {:.0} | {:.0} | {:.0} % | {:.1} % |",
                thousands(step.rate),
                thousands(step.useful()),
                step.useful() / best,
                step.seen.wait_ms(0.5),
                step.seen.wait_ms(0.99),
                step.later_p99_ms(),
                100.0 * step.part(step.seen.of_status(503)),
                100.0 * step.part(step.seen.lost),
            );
        }
        if let Some(rate) = self.too_many {
            let _ =
                writeln!(text, "\nThe generator's processor is too slow for {} arrivals a second.", thousands(rate));
        }
        let of = |figure: &dyn Fn(&(f64, Step)) -> f64| self.crowds.iter().map(figure).collect::<Vec<f64>>();
        let chart = Chart {
            title: "Useful answers a second (line) of so many arrivals (bars)".to_owned(),
            x: Axis::Names("times the knee", self.crowds.iter().map(|(multiple, _)| multiple.to_string()).collect()),
            y: "a second",
            bars: of(&|(_, step)| step.rate),
            line: of(&|(_, step)| step.useful()),
        };
        let _ = write!(text, "\n{chart}");
    }

    pub fn json(&self) -> Value {
        let crowds = self.crowds.iter().map(|(multiple, step)| {
            json!({
                "times_the_knee": multiple, "arrivals": step.arrivals, "rate": step.rate, "seconds": step.seen.seconds,
                "statuses": step.seen.statuses, "lost": step.seen.lost, "useful_a_second": step.useful(),
                "p50_ms": step.seen.wait_ms(0.5), "p99_ms": step.seen.wait_ms(0.99),
                "later_p99_ms": step.later_p99_ms(),
            })
        });
        json!({ "crowds": crowds.collect::<Vec<_>>(), "too_many_for_the_generator": self.too_many })
    }
}
