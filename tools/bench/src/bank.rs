//! The sandbox bank: `seckill channel-sandbox`, a process of its own at the address that `./dev` has configured.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use serde::Deserialize;
use tokio::process::Command;

use crate::processes::{Process, program};

/// Payments per second that the bank takes, and that our channel sends: the default of both.
pub(crate) const RATE: u64 = 200;
/// Arrivals per page.
const PAGE: usize = 10_000;

pub(crate) struct Bank {
    pub process: Process,
    client: reqwest::Client,
}

#[derive(Deserialize)]
struct Page {
    arrivals: Vec<Arrival>,
    next: Option<u64>,
}

#[derive(Deserialize)]
struct Arrival {
    at_us: i64,
    outcome: String,
}

impl Bank {
    /// Starts the bank; it sends its callbacks to this service.
    pub(crate) async fn open(log: &Path, service: SocketAddr) -> anyhow::Result<Self> {
        let bind = std::env::var("SECKILL_SANDBOX__BIND").context("SECKILL_SANDBOX__BIND")?;
        let callbacks = format!("http://{service}/api/v1/payments/callbacks/sandbox");
        let mut bank = Command::new(program()?);
        bank.arg("channel-sandbox").env("SECKILL_SANDBOX__CALLBACK_URL", callbacks);
        bank.env("SECKILL_SANDBOX__PAY_RATE", RATE.to_string());
        let client = reqwest::Client::new();
        let process = Process::start_at(bind.parse()?, log, &mut bank)?.ready(&client, "/healthz").await?;
        Ok(Self { process, client })
    }

    /// Number of payments that arrived in this time.
    pub(crate) async fn payments_taken(&self, during: &Range<SystemTime>) -> anyhow::Result<u64> {
        let us = |moment: SystemTime| anyhow::Ok(i64::try_from(moment.duration_since(UNIX_EPOCH)?.as_micros())?);
        let during = us(during.start)?..us(during.end)?;
        let (mut after, mut taken) = (0, 0);
        loop {
            let path = format!("v1/arrivals?kind=pay&after={after}&limit={PAGE}");
            let answer = self.client.get(format!("http://{}/{path}", self.process.address)).send().await?;
            let page: Page = answer.error_for_status()?.json().await?;
            for arrival in page.arrivals.iter().filter(|arrival| during.contains(&arrival.at_us)) {
                ensure!(arrival.outcome == "accepted", "the bank has {} a payment", arrival.outcome);
                taken += 1;
            }
            match page.next {
                Some(next) => after = next,
                None => return Ok(taken),
            }
        }
    }
}
