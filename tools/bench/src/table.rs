//! The results of the sale: the table of the README.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::cases::{Case, Round};
use crate::series::{Cell, Series, Table, one_place, thousands, two_places};
use crate::settle::Settled;
use crate::wrk::{CONNECTIONS, FEW_CONNECTIONS};

/// One round, by the number of connections.
pub(crate) type Played = BTreeMap<(Case, u64), Round>;

pub(crate) struct Sold {
    pub seconds: u64,
    pub rounds: Vec<Played>,
    pub settled: Settled,
}

/// The processes whose CPU time is in the table, and their columns.
const PROCESSES: [(&str, &str); 4] =
    [("server", "server"), ("redis", "Redis"), ("postgres", "PostgreSQL"), ("wrk", "wrk")];

impl Sold {
    fn series(&self, case: Case, connections: u64, figure: impl Fn(&Round) -> f64) -> Series {
        Series::of(self.rounds.iter().filter_map(|round| round.get(&(case, connections))).map(figure))
    }

    fn of_hello(&self, case: Case, connections: u64) -> Series {
        let rate = |case| self.series(case, connections, |round| round.seen.per_second());
        rate(case).over(&rate(Case::Hello))
    }

    pub(crate) fn table(&self) -> Table {
        let row = |case: Case| {
            let of = |figure: &dyn Fn(&Round) -> f64| self.series(case, CONNECTIONS, figure);
            let [p50, p99] = [of(&|round| round.seen.p50_us as f64 / 1e3), of(&|round| round.seen.p99_us as f64 / 1e3)];
            let mut cells = vec![
                Cell::range("requests/s", &of(&|round| round.seen.per_second()), thousands),
                Cell::range("of hello-world", &self.of_hello(case, CONNECTIONS), two_places),
                Cell::range(format!("with {FEW_CONNECTIONS}"), &self.of_hello(case, FEW_CONNECTIONS), two_places),
                Cell {
                    column: "p50, p99 ms".to_owned(),
                    text: format!("{:.1}, {:.1}", p50.median(), p99.median()),
                    json: json!([p50.json(), p99.json()]),
                },
            ];
            let cpu = |(process, column): (&str, &str)| {
                Cell::median(column, &of(&|round| round.cpu_us.of(process)), one_place)
            };
            cells.extend(PROCESSES.map(cpu));
            (case.title().to_owned(), cells)
        };
        let Settled { orders, per_second, cpu_us } = &self.settled;
        Table {
            above: format!(
                "Medians of {} interleaved rounds of {} s (least–most), wrk with {CONNECTIONS} connections on the same machine; \
                 one column with {FEW_CONNECTIONS}.",
                self.rounds.len(),
                self.seconds
            ),
            heading: "answer",
            rows: Case::ALL.map(row).into(),
            below: format!(
                "The last four columns: microseconds of CPU a request, by process. Afterwards one `seckill work` settled {} \
                 orders, {} a second, with these microseconds of CPU each: {}.",
                thousands(*orders as f64),
                thousands(*per_second),
                cpu_us.list()
            ),
        }
    }

    pub(crate) fn ratios(&self) -> Value {
        let ratio = |case| self.of_hello(case, CONNECTIONS).median();
        json!({
            "sold_out": ratio(Case::SoldOut),
            "refused_by_redis": ratio(Case::RefusedByRedis),
            "winners": ratio(Case::Winners),
        })
    }
}
