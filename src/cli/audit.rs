//! `audit`: checks the invariants of sales and, if asked, our books against the payment channels'.

use std::process::ExitCode;

use anyhow::{Context, Error};
use serde_json::json;

use super::arguments::SaleOption;
use super::{CouldNotRun, print};
use crate::app::{payment_service, stores};
use seckill_buying::sale::Stores;
use seckill_buying::sale_work::audit::SaleVerdict;
use seckill_config::Config;
use seckill_domain::ids::SaleId;
use seckill_money::compare_books::ChannelVerdict;
use seckill_postgres::sales::terms::SaleSearch;

/// Sales that are read at a time.
const PAGE: i64 = 1000;

#[derive(clap::Args)]
pub(super) struct AuditArgs {
    #[command(flatten)]
    sale: SaleOption,
    /// Compare our books with the payment channels' books too
    #[arg(long)]
    channel: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl AuditArgs {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<ExitCode> {
        let stores = stores(config)?;
        let sales = match self.sale.sale {
            Some(id) => vec![id],
            None => all_sales(&stores).await?,
        };
        let mut verdicts = Vec::new();
        for sale in sales {
            let verdict = stores.audit(sale, config.reconcile.retire_after_ms).await.map_err(Error::msg)?;
            verdicts.push(verdict.with_context(|| format!("there is no sale {sale}"))?);
        }
        let channels = match self.channel {
            true => payment_service(config)?.compare().await.map_err(Error::msg)?,
            false => Vec::new(),
        };
        let channels_held = channels.iter().all(|channel| channel.held);
        if self.json {
            let held = channels_held && verdicts.iter().all(|verdict| verdict.held);
            print::json(&json!({ "held": held, "sales": verdicts, "channels": channels }))?;
        } else {
            print::lines(verdicts.iter().map(sale_text).chain(channels.iter().map(channel_text)))?;
        }
        if channels_held { exit_code(&verdicts) } else { Ok(ExitCode::from(1)) }
    }
}

/// Newest first.
async fn all_sales(stores: &Stores) -> anyhow::Result<Vec<SaleId>> {
    let (mut sales, mut last) = (Vec::new(), None);
    loop {
        let search = SaleSearch::after(last.as_ref(), PAGE);
        let mut page = stores.ledger.sales.sale_figures(&search).await.map_err(Error::msg)?;
        sales.extend(page.iter().map(|figures| figures.sale.id));
        last = page.pop();
        if last.is_none() {
            return Ok(sales);
        }
    }
}

/// Exit code 1 if any sale broke an invariant.
pub(super) fn exit_code(verdicts: &[SaleVerdict]) -> anyhow::Result<ExitCode> {
    if verdicts.iter().any(|verdict| !verdict.held) {
        return Ok(ExitCode::from(1));
    }
    let not_compared = verdicts.iter().find(|verdict| verdict.at_rest && !verdict.redis_compared && !verdict.retired);
    match not_compared {
        Some(verdict) => Err(CouldNotRun(format!("Redis does not serve sale {}", verdict.sale_id)).into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Whether the sale rests, or what of it is in flight.
fn state(verdict: &SaleVerdict) -> String {
    let in_flight = verdict.in_flight;
    let mut state = match (verdict.at_rest, verdict.redis_compared) {
        (true, true) => "at rest".to_owned(),
        (true, false) if verdict.retired => "retired from Redis".to_owned(),
        (true, false) => "Redis not compared".to_owned(),
        (false, _) => format!(
            "in flight: {} promised, {} unconfirmed, {} unreleased, {} messages",
            in_flight.promised_units, in_flight.unconfirmed_units, in_flight.unreleased_units, in_flight.messages
        ),
    };
    if in_flight.open_loans > 0 {
        state.push_str(&format!("; {} loans between shards are open", in_flight.open_loans));
    }
    if in_flight.money > 0 {
        state.push_str(&format!("; {} payments and refunds in progress", in_flight.money));
    }
    state
}

pub(super) fn sale_text(verdict: &SaleVerdict) -> String {
    let (word, state) = (if verdict.held { "held" } else { "BROKEN" }, state(verdict));
    let redis = verdict.redis_available.map_or("-".to_owned(), |units| units.to_string());
    let mut text = format!(
        "sale {}: {word} ({state}); total {}, left {}, in live orders {}, for sale in Redis {redis}",
        verdict.sale_id, verdict.total_stock, verdict.stock, verdict.live_units
    );
    for finding in &verdict.findings {
        text.push_str(&format!("\n  {}: {}", finding.invariant, finding.problem));
        finding.evidence.iter().for_each(|evidence| text.push_str(&format!("\n    {evidence}")));
    }
    text
}

fn channel_text(verdict: &ChannelVerdict) -> String {
    let word = if verdict.held { "held" } else { "BROKEN" };
    let mut text = format!(
        "channel {}: {word}; {} movements of money, {} of them not reported to us yet",
        verdict.channel, verdict.movements, verdict.under_way
    );
    verdict.differences.iter().for_each(|difference| text.push_str(&format!("\n  {difference}")));
    text
}
