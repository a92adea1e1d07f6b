//! Crowds: winners beside a thousand readers, and a rush without and with the workers that settle it. Both are played by
//! `seckill load`, whose arrivals follow a schedule, whatever the service does.

use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use crate::Setup;
use crate::processes;
use crate::series::{Cell, Series, Table, one_place, thousands, whole};
use crate::service::Service;
use crate::settle::{self, relayed, settled};
use crate::wrk::RecordFile;

/// Arrivals per second beside the readers, and the connections of the readers.
const BESIDE_READERS: u64 = 1_500;
const READERS: u64 = 1_000;
/// A rush of buyers who each send one request, and no bots.
const RUSH_BUYERS: &str = "20000";
const RUSH_STOCK: u64 = 2_000;
const HONEST: [&str; 8] = ["--early", "0", "--doubles", "0", "--unknown", "0", "--forged", "0"];
/// Before a rush, so that the crowds before it are not measured with it.
const REST: Duration = Duration::from_secs(2);

/// The readers that `measure` needs.
pub(crate) fn readers(seconds: u64) -> u64 {
    seconds * 20_000
}

/// Groups of buyers in the report of `seckill load`: the winners, and all who were due in the first second.
const WINNERS: &str = "accepted_only";
const FIRST_SECOND: &str = "first_second";

/// Plays a crowd by `seckill load` with these words, at a new sale.
async fn rush(service: &Service, stock: u64, words: &[&str]) -> anyhow::Result<Value> {
    let sale = service.sale(stock.cast_signed()).await?.id;
    sleep(REST).await;
    service.rush(sale, &[&HONEST[..], words].concat()).await
}

/// Answers with status 503, and requests without an answer.
fn unavailable(report: &Value) -> f64 {
    let counts = report["counts"].as_object().into_iter().flatten();
    let refused = counts.filter(|(answer, _)| answer.starts_with("503") || answer.starts_with("no answer"));
    refused.filter_map(|(_, number)| number.as_f64()).sum()
}

pub(crate) async fn measure(setup: &Setup, readers: &RecordFile) -> anyhow::Result<Table> {
    let Setup { service, sql, logs, rounds, seconds, .. } = setup;
    let (rounds, seconds) = (*rounds, *seconds);
    let (mut quiet, mut beside_readers, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    let (mut alone, mut beside_workers) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}: winners without and with readers");
        let stock = BESIDE_READERS * seconds;
        let [rate, length, buyers] = [BESIDE_READERS, seconds, stock].map(|n| n.to_string());
        let words = ["--rate", &rate, "--seconds", &length, "--buyers", &buyers, "--shape", "even"];
        quiet.push(rush(service, stock, &words).await?);
        // The readers read before the first buyer comes and after the last.
        let reading = readers.read(service.process.address, READERS, REST.as_secs() + seconds + 3);
        let (read, bought) = tokio::try_join!(reading, rush(service, stock, &words))?;
        reads.push(read.per_second());
        beside_readers.push(bought);

        // In alternating order, because the first has to share the machine with work left by the crowds before.
        for with_workers in if round % 2 == 1 { [false, true] } else { [true, false] } {
            eprintln!("round {round} of {rounds}: a rush {} workers", if with_workers { "beside" } else { "without" });
            let words = ["--buyers", RUSH_BUYERS];
            if !with_workers {
                alone.push(rush(service, RUSH_STOCK, &words).await?);
                continue;
            }
            let mut work = processes::work(&logs.join("work.log"), None)?;
            settled(sql).await?;
            relayed(sql).await?;
            beside_workers.push(rush(service, RUSH_STOCK, &words).await?);
            settled(sql).await?;
            processes::stop(&mut work).await?;
        }
    }
    settle::audit(&[]).await?;
    let row = |name: String, rounds: &[Value], group: &str| {
        let ms = |figure: &str| Series::of(rounds.iter().map(|rush| rush[group][figure].as_f64().unwrap_or(f64::NAN)));
        let cells = vec![
            Cell::range("p50 ms", &ms("p50_ms"), one_place),
            Cell::range("p99 ms", &ms("p99_ms"), one_place),
            Cell::range("503 or no answer", &Series::of(rounds.iter().map(unavailable)), whole),
        ];
        (name, cells)
    };
    let reads = Series::of(reads).with_range(thousands);
    let beside = format!("the same beside {READERS} connections that read, {reads} times a second");
    Ok(Table {
        above: String::new(),
        heading: "beside others",
        rows: vec![
            row(format!("winners, {BESIDE_READERS} arrivals a second"), &quiet, WINNERS),
            row(beside, &beside_readers, WINNERS),
            row("the first second of a rush, `serve` alone".to_owned(), &alone, FIRST_SECOND),
            row("the same, with `work` beside it".to_owned(), &beside_workers, FIRST_SECOND),
        ],
        below: format!("The rush: {RUSH_BUYERS} buyers within ten seconds, {RUSH_STOCK} units."),
    })
}
