//! Overload: more arrivals than the service can serve, in an open model. It counts useful answers and measures the waits of
//! winners.

use std::time::Duration;

use anyhow::ensure;
use redis::cmd;

use crate::Setup;
use crate::arrivals::{self, Seen, waits};
use crate::processes;
use crate::series::{Cell, Series, Table, percentile_ms, thousands, two_places, whole};
use crate::service::Service;
use crate::settle;
use crate::wrk::RecordFile;

/// The search for the knee begins with this many arrivals per second, and multiplies them by these steps, the largest first.
const KNEE_FROM: f64 = 2_000.0;
const KNEE_STEPS: [f64; 3] = [1.25, 1.1, 1.04];
/// The knee is the highest rate at which this share gets a useful answer and the p99 of winners is at most this.
const KNEE_SHARE: f64 = 0.99;
const KNEE_P99_MS: f64 = 200.0;
const MULTIPLES: [f64; 7] = [0.5, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0];
/// Crowds of each rate; the tables have their medians. In the search for the knee, one of them must be served.
const TRIES: usize = 3;
/// Buyers in the largest crowd, which bounds its length.
pub(crate) const CROWD_MAX: usize = 600_000;
/// Before a crowd, so that the crowd before is not measured with it.
const REST: Duration = Duration::from_secs(2);

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
        self.series(|step| step.useful_a_second)
    }
}

struct Step {
    arrivals: usize,
    seen: Seen,
    useful_a_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Of winners who were answered after the first second: before that, the service does not know yet that too many have come.
    later_p99_ms: f64,
}

impl Step {
    fn of(arrivals: usize, seen: Seen) -> Self {
        let winners = || seen.answers.iter().filter(|answer| answer.status == 202);
        let (all, later) = (waits(winners()), waits(winners().filter(|answer| answer.after_ms >= 1000)));
        let useful_a_second = if seen.useful() == 0 { 0.0 } else { seen.useful() as f64 / seen.seconds };
        let [p50_ms, p99_ms] = [0.5, 0.99].map(|share| percentile_ms(&all, share));
        Self { arrivals, useful_a_second, p50_ms, p99_ms, later_p99_ms: percentile_ms(&later, 0.99), seen }
    }

    fn part(&self, answers: u64) -> f64 {
        answers as f64 / self.arrivals as f64
    }
}

pub(crate) async fn measure(setup: &Setup, buyers: &RecordFile) -> anyhow::Result<Table> {
    // A generator that shared its processor with the service would be late when the service is busy.
    let last = std::thread::available_parallelism()?.get() - 1;
    ensure!(last > 0, "overload needs two processors at least");
    let Setup { service, sql, logs, seconds, .. } = setup;
    let processes = [&setup.servers[..], &[("server", service.process.pid)]].concat();
    processes::keep_on(&format!("0-{}", last - 1), &processes).await?;
    // Once in a million winners Redis rewrites its file, which takes processor time for seconds.
    let rewrites = set_rewrites("0")?;
    let measured = Generator { service, buyers, processor: last, seconds: *seconds }.play_all().await;
    set_rewrites(&rewrites)?;
    processes::keep_on(&format!("0-{last}"), &processes).await?;
    let _work = processes::work(&logs.join("work.log"), None)?;
    settle::settled(sql).await?;
    settle::audit(&[]).await?;
    Ok(table(&measured?))
}

/// Sets by how many percent Redis's append-only file grows before Redis rewrites it; 0: never. Returns the old setting.
fn set_rewrites(percent: &str) -> anyhow::Result<String> {
    const SETTING: &str = "auto-aof-rewrite-percentage";
    let mut redis = redis::Client::open(std::env::var("REDIS_URL")?)?.get_connection()?;
    let (_, before): (String, String) = cmd("CONFIG").arg("GET").arg(SETTING).query(&mut redis)?;
    cmd("CONFIG").arg("SET").arg(SETTING).arg(percent).query::<()>(&mut redis)?;
    Ok(before)
}

/// Sends crowds from a processor of its own.
struct Generator<'a> {
    service: &'a Service,
    buyers: &'a RecordFile,
    processor: usize,
    seconds: u64,
}

impl Generator<'_> {
    async fn play_all(&self) -> anyhow::Result<Vec<Rate>> {
        let mut knee = KNEE_FROM;
        for step in KNEE_STEPS {
            while self.is_served(knee * step).await? {
                knee *= step;
            }
        }
        let mut rates =
            Vec::from(MULTIPLES.map(|multiple| Rate { multiple, a_second: knee * multiple, tries: Vec::new() }));
        // All rates, and then all again: a machine that is slow for a minute is so at one try of a rate only.
        for _ in 0..TRIES {
            for rate in &mut rates {
                let step = self.play(rate.a_second, self.seconds).await?;
                if step.seen.is_late() {
                    break;
                }
                rate.tries.push(step);
            }
        }
        rates.retain(|rate| !rate.tries.is_empty());
        Ok(rates)
    }

    /// Whether nearly all arrivals of this rate get a useful answer soon, in one of the tries: something else may hold up the
    /// processor in another.
    async fn is_served(&self, rate: f64) -> anyhow::Result<bool> {
        for _ in 0..TRIES {
            let step = self.play(rate, self.seconds.min(4)).await?;
            if !step.seen.is_late() && step.part(step.seen.useful()) >= KNEE_SHARE && step.p99_ms <= KNEE_P99_MS {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Arrivals at this rate who do not try again.
    async fn play(&self, rate: f64, seconds: u64) -> anyhow::Result<Step> {
        let count = ((rate * seconds as f64) as usize).min(CROWD_MAX);
        let sale = self.service.sale(count.cast_signed() as i64).await?;
        tokio::time::sleep(REST).await;
        let to = self.service.process.address;
        let seen = arrivals::play(self.processor, to, &sale, self.buyers, count, rate).await?;
        let step = Step::of(count, seen);
        eprintln!(
            "{} arrivals a second: {} useful, p50 and p99 of winners {:.0} and {:.0} ms; {} shed, {} lost",
            thousands(rate),
            thousands(step.useful_a_second),
            step.p50_ms,
            step.p99_ms,
            step.seen.of_status(503),
            step.seen.lost
        );
        Ok(step)
    }
}

fn table(rates: &[Rate]) -> Table {
    let best = rates.iter().map(|rate| rate.useful().median()).fold(0.0, f64::max);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let row = |rate: &Rate| {
        let of_best = Series::of([rate.useful().median() / best]);
        let of = |figure: fn(&Step) -> f64| rate.series(figure);
        let cells = vec![
            Cell::median("a second", &Series::of([rate.a_second]), thousands),
            Cell::range("useful answers a second", &rate.useful(), thousands),
            Cell::median("of the best", &of_best, two_places),
            Cell::median("p50 ms of winners", &of(|step| step.p50_ms), whole),
            Cell::range("p99 ms of winners", &of(|step| step.p99_ms), whole),
            Cell::range("p99 after the first second", &of(|step| step.later_p99_ms), whole),
            Cell::median("shed", &of(|step| step.part(step.seen.of_status(503))), percent),
            Cell::median("lost", &of(|step| step.part(step.seen.lost)), percent),
        ];
        (rate.multiple.to_string(), cells)
    };
    Table {
        above: format!(
            "The generator has a processor of its own; the service and its servers have the others. Redis does not rewrite \
                 its file meanwhile. Medians of {TRIES} crowds, and least and most."
        ),
        heading: "arrivals, of the knee",
        rows: rates.iter().map(row).collect(),
        below: format!("The generator was too slow for {} higher rates.", MULTIPLES.len() - rates.len()),
    }
}
