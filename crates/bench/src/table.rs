//! The results of the sale as a Markdown table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::cases::{Case, Round};
use crate::series::{Series, thousands, two_places};
use crate::settle::Settled;
use crate::wrk::{CONNECTIONS, FEW_CONNECTIONS};

/// One round, by the case's name and the number of connections.
pub type Played = BTreeMap<(&'static str, u64), Round>;

pub struct Sold {
    pub seconds: u64,
    pub rounds: Vec<Played>,
    pub settled: Settled,
}

/// The processes whose CPU time is in the table.
const PROCESSES: [&str; 4] = ["server", "redis", "postgres", "wrk"];

impl Sold {
    fn series(&self, case: Case, connections: u64, figure: impl Fn(&Round) -> f64) -> Series {
        Series::of(self.rounds.iter().filter_map(|round| round.get(&(case.name(), connections))).map(figure))
    }

    fn rate(&self, case: Case, connections: u64) -> Series {
        self.series(case, connections, |round| round.seen.per_second())
    }

    fn of_hello(&self, case: Case, connections: u64) -> Series {
        self.rate(case, connections).over(&self.rate(Case::Hello, connections))
    }

    fn figures(&self, case: Case, connections: u64) -> Value {
        let of = |figure: fn(&Round) -> f64| self.series(case, connections, figure).json();
        let cpu = PROCESSES.map(|process| {
            (process.to_owned(), self.series(case, connections, |round| round.cpu_us.of(process)).json())
        });
        json!({
            "requests_per_second": self.rate(case, connections).json(),
            "p50_us": of(|round| round.seen.p50_us as f64),
            "p99_us": of(|round| round.seen.p99_us as f64),
            "cpu_us": cpu.into_iter().collect::<Map<_, _>>(),
        })
    }

    pub fn markdown(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "Medians of {} interleaved rounds of {} s (least–most), wrk with {CONNECTIONS} connections on the same \
             machine; one column with {FEW_CONNECTIONS}.\n\n\
             | answer | requests/s | of hello-world | with {FEW_CONNECTIONS} | p50, p99 ms | server | Redis | PostgreSQL | wrk |\n\
             |---|---|---|---|---|---|---|---|---|",
            self.rounds.len(),
            self.seconds
        );
        for case in Case::ALL {
            let ms = |figure: fn(&Round) -> u64| {
                self.series(case, CONNECTIONS, |round| figure(round) as f64 / 1000.0).median()
            };
            let (p50, p99) = (ms(|round| round.seen.p50_us), ms(|round| round.seen.p99_us));
            let rate = self.rate(case, CONNECTIONS).with_range(thousands);
            let [of_hello, few] =
                [CONNECTIONS, FEW_CONNECTIONS].map(|number| self.of_hello(case, number).with_range(two_places));
            let _ = write!(text, "| {} | {rate} | {of_hello} | {few} | {p50:.1}, {p99:.1}", case.title());
            for process in PROCESSES {
                let used = self.series(case, CONNECTIONS, |round| round.cpu_us.of(process));
                let _ = write!(text, " | {:.1}", used.median());
            }
            text.push_str(" |\n");
        }
        let settled = &self.settled;
        let _ = writeln!(
            text,
            "\nThe last four columns: microseconds of CPU a request, by process. Afterwards one `seckill work` settled {} orders, \
             {} a second, with these microseconds of CPU each: {}.\n",
            thousands(settled.orders as f64),
            thousands(settled.per_second),
            settled.cpu_us.list()
        );
    }

    /// Adds the figures to the bench's document.
    pub fn json(&self, to: &mut Value) {
        let cases = Case::ALL.map(|case| {
            let mut figures = self.figures(case, CONNECTIONS);
            figures["title"] = json!(case.title());
            figures["of_hello"] = self.of_hello(case, CONNECTIONS).json();
            figures["of_hello_with_few_connections"] = self.of_hello(case, FEW_CONNECTIONS).json();
            // The same with few connections, where fewer buyers share a call or a commit.
            figures["few"] = self.figures(case, FEW_CONNECTIONS);
            (case.name().to_owned(), figures)
        });
        let ratio = |case| self.of_hello(case, CONNECTIONS).median();
        to["rounds"] = json!(self.rounds.len());
        to["seconds"] = json!(self.seconds);
        to["connections"] = json!(CONNECTIONS);
        to["few_connections"] = json!(FEW_CONNECTIONS);
        to["ratios"] = json!({
            "sold_out": ratio(Case::SoldOut),
            "refused_by_redis": ratio(Case::RefusedByRedis),
            "winners": ratio(Case::Winners),
        });
        to["cases"] = cases.into_iter().collect::<Map<_, _>>().into();
        to["settled"] = self.settled.json();
    }
}
