//! The results as Markdown tables and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use crate::cases::{Case, Round};
use crate::challenges;
use crate::chart::{Axis, Chart};
use crate::crowds;
use crate::flow;
use crate::footprint::Footprint;
use crate::gateway;
use crate::machine::Machine;
use crate::million;
use crate::overload;
use crate::payments_table;
use crate::reserve_script::{self, Run};
use crate::rush;
use crate::scale;
use crate::series::{Series, thousands, two_places};
use crate::settle::Settled;
use crate::watchers;
use crate::wrk::{CONNECTIONS, FEW_CONNECTIONS};

pub struct Results {
    pub machine: Machine,
    pub rush: Option<rush::Results>,
    pub sold: Option<Sold>,
    pub flow: Option<flow::Results>,
    pub gateway: Option<gateway::Results>,
    pub payments: Option<payments_table::Results>,
    pub crowds: Option<crowds::Results>,
    pub challenges: Option<challenges::Results>,
    pub watchers: Option<watchers::Results>,
    pub overload: Option<overload::Results>,
    pub million: Option<million::Results>,
    pub scale: Option<scale::Results>,
    pub idle: Option<scale::Idle>,
}

/// What was played in one round, by the case's name and the number of connections.
pub type Played = BTreeMap<(&'static str, u64), Round>;

/// The results of the sale.
pub struct Sold {
    pub seconds: u64,
    pub rounds: Vec<Played>,
    pub settled: Settled,
    pub footprint: Footprint,
    /// Id of the sale that is sold out.
    pub sold_out: i64,
    pub script: Vec<(&'static Run, Series)>,
}

/// The processes whose CPU time is in the table, after the answering server's.
const BEHIND: [&str; 3] = ["redis", "postgres", "wrk"];

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

    fn cpu_us(&self, case: Case, process: &str) -> Series {
        self.series(case, CONNECTIONS, |round| round.cpu_us(process))
    }

    /// The figures of a case with this many connections that have no column of their own.
    fn figures(&self, case: Case, connections: u64) -> Value {
        let of = |figure: fn(&Round) -> f64| self.series(case, connections, figure).json();
        let cpu = ["server"].iter().chain(&BEHIND).map(|process| {
            ((*process).to_owned(), self.series(case, connections, |round| round.cpu_us(process)).json())
        });
        json!({
            "requests_per_second": self.rate(case, connections).json(),
            "p50_us": of(|round| round.seen.p50_us as f64),
            "p99_us": of(|round| round.seen.p99_us as f64),
            "cpu_us": cpu.collect::<serde_json::Map<_, _>>(),
            "buyers_a_call": of(|round| round.buyers_a_call),
            "winners_a_commit": of(|round| round.winners_a_commit),
        })
    }

    fn markdown(&self, text: &mut String) {
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
            for process in ["server"].iter().chain(&BEHIND) {
                let _ = write!(text, " | {:.1}", self.cpu_us(case, process).median());
            }
            text.push_str(" |\n");
        }
        text.push_str("\nThe last four columns: microseconds of CPU a request, by process.\n\n");
        let _ = writeln!(text, "{}", self.chart());
        let _ = writeln!(text, "| afterwards | a second |\n|---|---|");
        let settled = &self.settled;
        let _ = write!(text, "| orders settled by one `seckill work`, of {} ", thousands(settled.orders as f64));
        let _ = writeln!(text, "| {} |", thousands(settled.per_second));
        for (run, rate) in &self.script {
            let _ = writeln!(text, "| redis-benchmark: {} | {} |", run.title, rate.with_range(thousands));
        }
        text.push('\n');
        self.footprint.markdown(text);
    }

    fn chart(&self) -> Chart {
        let shares = |number| Case::ALL.iter().map(|case| self.of_hello(*case, number).median()).collect();
        Chart {
            title: format!("Share of hello-world, {CONNECTIONS} connections (bars) and {FEW_CONNECTIONS} (line)"),
            x: Axis::Names("answer", Case::ALL.iter().map(|case| case.name().replace('_', " ")).collect()),
            y: "of hello-world",
            bars: shares(CONNECTIONS),
            line: shares(FEW_CONNECTIONS),
        }
    }

    fn json(&self) -> Value {
        let cases = Case::ALL.map(|case| {
            let mut figures = self.figures(case, CONNECTIONS);
            figures["title"] = json!(case.title());
            figures["of_hello"] = self.of_hello(case, CONNECTIONS).json();
            figures["of_hello_with_few_connections"] = self.of_hello(case, FEW_CONNECTIONS).json();
            figures["requests"] = json!(self.series(case, CONNECTIONS, |round| round.seen.requests as f64));
            // The same with few connections, whose batches are small.
            figures["few"] = self.figures(case, FEW_CONNECTIONS);
            (case.name().to_owned(), figures)
        });
        let ratio = |case| self.of_hello(case, CONNECTIONS).median();
        json!({
            "rounds": self.rounds.len(),
            "seconds": self.seconds,
            "connections": CONNECTIONS,
            "few_connections": FEW_CONNECTIONS,
            "ratios": {
                "sold_out": ratio(Case::SoldOut),
                "refused_by_redis": ratio(Case::RefusedByRedis),
                "winners": ratio(Case::Winners),
                "watched_winners": ratio(Case::WatchedWinners),
            },
            "cases": cases.into_iter().collect::<serde_json::Map<_, _>>(),
            "settled": self.settled.json(),
            "bytes": self.footprint.json(),
            "redis_benchmark": reserve_script::json(&self.script),
        })
    }
}

impl Results {
    pub fn markdown(&self) -> String {
        let mut text = format!("{}.\n\n", self.machine);
        if let Some(rush) = &self.rush {
            rush.markdown(&mut text);
        }
        if let Some(sold) = &self.sold {
            sold.markdown(&mut text);
        }
        if let Some(flow) = &self.flow {
            flow.markdown(&mut text);
        }
        if let Some(gateway) = &self.gateway {
            gateway.markdown(&mut text);
        }
        if let Some(payments) = &self.payments {
            payments.markdown(&mut text);
        }
        if let Some(crowds) = &self.crowds {
            crowds.markdown(&mut text);
        }
        if let Some(challenges) = &self.challenges {
            challenges.markdown(&mut text);
        }
        if let Some(watchers) = &self.watchers {
            watchers.markdown(&mut text);
        }
        if let Some(overload) = &self.overload {
            overload.markdown(&mut text);
        }
        if let Some(million) = &self.million {
            million.markdown(&mut text);
        }
        if let Some(scale) = &self.scale {
            scale.markdown(&mut text);
        }
        if let Some(idle) = &self.idle {
            text.push('\n');
            idle.markdown(&mut text);
        }
        text
    }

    pub fn json(&self) -> Value {
        let mut json = self.sold.as_ref().map_or_else(|| json!({}), Sold::json);
        json["machine"] = self.machine.json();
        if let Some(rush) = &self.rush {
            json["rush"] = rush.json();
        }
        if let Some(flow) = &self.flow {
            json["flow"] = flow.json();
        }
        if let Some(gateway) = &self.gateway {
            json["gateway"] = gateway.json();
        }
        if let Some(payments) = &self.payments {
            json["payments"] = payments.json();
        }
        if let Some(crowds) = &self.crowds {
            json["crowds"] = crowds.json();
        }
        if let Some(challenges) = &self.challenges {
            json["challenges"] = challenges.json();
        }
        if let Some(watchers) = &self.watchers {
            json["watchers"] = watchers.json();
        }
        if let Some(overload) = &self.overload {
            json["overload"] = overload.json();
        }
        if let Some(million) = &self.million {
            json["million"] = million.json();
        }
        if let Some(scale) = &self.scale {
            json["scale"] = scale.json();
        }
        if let Some(idle) = &self.idle {
            json["idle"] = idle.json();
        }
        json
    }
}
