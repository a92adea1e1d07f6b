//! The results of purchases without and with payments, as a table and as JSON.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::bank::RATE;
use crate::cases::{Case, Round};
use crate::processes::Cpu;
use crate::series::{Series, thousands, two_places};

/// The processes whose CPU time is printed.
const PROCESSES: [&str; 8] = ["server", "redis", "postgres", "wrk", "work", "bank", "rabbitmq", "bench"];

/// One round without and one with payments.
pub struct Pair {
    pub without: Round,
    pub with: PaymentRound,
}

/// A round of purchases with payments running.
pub struct PaymentRound {
    pub round: Round,
    /// Payments per second that the bank took, and that were begun.
    pub bank: f64,
    pub begun: f64,
    /// Cores that payments kept busy without purchases, by process.
    pub alone: Cpu,
}

pub struct Results {
    pub seconds: u64,
    pub rounds: Vec<Pair>,
    /// Rounds that were played again, because too few payments ran in them.
    pub too_slow: u64,
}

/// One of the two rounds that are compared.
type Side = fn(&Pair) -> &Round;
const WITHOUT: Side = |pair| &pair.without;
const WITH: Side = |pair| &pair.with.round;
const SIDES: [(&str, Side); 2] = [("without payments", WITHOUT), ("with payments running", WITH)];

impl Pair {
    pub fn log(&self, what: &str) {
        for (title, side) in SIDES {
            let round = side(self);
            let cpu = round.cpu_us.list();
            let rate = thousands(round.seen.per_second());
            eprintln!("{what}: {}, {title}: {rate} a second; µs of CPU each: {cpu}", Case::Winners.title());
        }
        let PaymentRound { bank, begun, .. } = self.with;
        eprintln!("{what}: the bank took {bank:.0} payments a second, {begun:.0} began");
    }
}

impl Results {
    fn of(&self, figure: impl Fn(&Pair) -> f64) -> Series {
        Series::of(self.rounds.iter().map(figure))
    }

    fn rate(&self, side: Side) -> Series {
        self.of(|pair| side(pair).seen.per_second())
    }

    fn cpu_us(&self, side: Side, process: &str) -> Series {
        self.of(|pair| side(pair).cpu_us.of(process))
    }

    /// Cores that all processes together kept busy.
    fn cores(&self, side: Side) -> Series {
        self.of(|pair| {
            let us: f64 = PROCESSES.iter().map(|process| side(pair).cpu_us.of(process)).sum();
            us * side(pair).seen.per_second() / 1e6
        })
    }

    fn cores_alone(&self) -> Series {
        self.of(|pair| PROCESSES.iter().map(|process| pair.with.alone.of(process)).sum())
    }

    pub fn markdown(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\n| bought, durable, {} rounds of {} s | a second | of that without | p50, p99 ms | server | Redis | \
             PostgreSQL | wrk | `work` | bank | RabbitMQ | bench | cores, all |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|",
            self.rounds.len(),
            self.seconds
        );
        for (title, side) in SIDES {
            let ms = |figure: fn(&Round) -> u64| self.of(|pair| figure(side(pair)) as f64 / 1000.0).median();
            let (p50, p99) = (ms(|round| round.seen.p50_us), ms(|round| round.seen.p99_us));
            let (rate, ratio) = (self.rate(side), self.rate(side).over(&self.rate(WITHOUT)));
            let (rate, ratio) = (rate.with_range(thousands), ratio.with_range(two_places));
            let _ = write!(text, "| {title} | {rate} | {ratio} | {p50:.1}, {p99:.1}");
            for process in PROCESSES {
                let _ = write!(text, " | {:.1}", self.cpu_us(side, process).median());
            }
            let _ = writeln!(text, " | {:.2} |", self.cores(side).median());
        }
        let _ = write!(text, "| payments alone, in cores | | | ");
        for process in PROCESSES {
            let _ = write!(text, " | {:.2}", self.of(|pair| pair.with.alone.of(process)).median());
        }
        let _ = writeln!(text, " | {:.2} |", self.cores_alone().median());
        let whole = |n: f64| format!("{n:.0}");
        let _ = writeln!(
            text,
            "\nIn turns, on the same servers; from \"server\" on: microseconds of CPU a purchase, by process. Payments running: \
             each second the bank (`seckill channel-sandbox`, {RATE} a second) takes {} of a backlog and tells the service of \
             each, and {} more begin (`POST /payments`, by this bench). The bank is up in both rows, and so is \
             `seckill work`: `--only ask` in the first, `--only pay,ask` in the second. All other workers are stopped: the \
             messages of the backlog were brought to the broker before. The last row is what payments take while nobody buys: where all share \
             the processors, so much less is left to purchases. Rounds that did not count, because \
             fewer payments ran than three quarters of the bank's rate: {}.",
            self.of(|pair| pair.with.bank).with_range(whole),
            self.of(|pair| pair.with.begun).with_range(whole),
            self.too_slow,
        );
    }

    pub fn json(&self) -> Value {
        let by_process = |figure: &dyn Fn(&str) -> Series| {
            PROCESSES.iter().map(|process| ((*process).to_owned(), figure(process).json())).collect::<Map<_, _>>()
        };
        let (without, with) = (self.rate(WITHOUT), self.rate(WITH));
        json!({
            "rounds": self.rounds.len(),
            "seconds": self.seconds,
            "rounds_too_slow": self.too_slow,
            "without_per_s": without.json(),
            "with_per_s": with.json(),
            "ratio": with.over(&without).json(),
            "bank_per_s": self.of(|pair| pair.with.bank).json(),
            "begun_per_s": self.of(|pair| pair.with.begun).json(),
            "cpu_us": {
                "without": by_process(&|process| self.cpu_us(WITHOUT, process)),
                "with": by_process(&|process| self.cpu_us(WITH, process)),
            },
            "cores": { "without": self.cores(WITHOUT).json(), "with": self.cores(WITH).json() },
            "alone_cores": by_process(&|process| self.of(|pair| pair.with.alone.of(process))),
        })
    }
}
