//! `load`: sends a rush of buyers to a running service, and compares their answers with the ledger.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use seckill_load::{Buyer, Plan, Report, Shape};
use serde_json::json;
use uuid::Uuid;

use super::tokens::TokenIssuer;
use super::{audit, print};
use crate::app::stores;
use seckill_buying::sale::Stores;
use seckill_buying::sale_work::audit::SaleVerdict;
use seckill_config::Config;
use seckill_domain::captcha::CaptchaKind;
use seckill_domain::ids::{OrderId, SaleId, UserId};
use seckill_postgres::sales::terms::SaleSearch;

#[derive(clap::Args)]
pub(super) struct LoadArgs {
    /// The sale to buy in; without it, the newest sale
    #[arg(long, value_name = "SALE_ID", value_parser = SaleId::parse, allow_negative_numbers = true)]
    sale: Option<SaleId>,
    /// Number of buyers
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    buyers: u32,
    /// How the buyers are spread over time; default: even with --rate or --seconds, else rush
    #[arg(long, value_enum)]
    shape: Option<Shape>,
    /// Buyers arriving per second, on average
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// Seconds over which the buyers arrive; 10 unless this or --rate is given
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// Number of bots; each has one token and sends twenty requests
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    bots: u32,
    /// Percentage of the buyers who also click before the start, if the sale is not open yet
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    early: f64,
    /// Percentage of the buyers who click twice, the second time with the same Idempotency-Key
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    doubles: f64,
    /// Additional requests for sales that do not exist, as a percentage of the buyers
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    unknown: f64,
    /// Additional requests with a forged signature on their token, as a percentage of the buyers
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    forged: f64,
    /// The most connections, with one request at a time on each; default: as many as the crowd needs, at most 10000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: Option<u32>,
    /// Number of threads that send, each over its share of the connections; more, if one falls behind the schedule
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Buyers who are told to come back later do not: for measuring what too large a crowd costs
    #[arg(long)]
    no_retries: bool,
    /// Seed of the random schedule; the same seed gives the same schedule
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Address of the service; without it, http.bind of the configuration
    #[arg(long, value_name = "URL")]
    base: Option<String>,
    /// Write the report to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report to this file as one HTML page, with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text.trim_end_matches('%').parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=100.0).contains(&number) { Ok(number) } else { Err("must be 0 to 100".to_owned()) }
}

const LEVEL: i64 = i32::MAX as i64;
const TOKEN_TTL_S: i64 = 3600;

impl LoadArgs {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<ExitCode> {
        let stores = stores(config)?;
        let sale = match self.sale {
            Some(id) => id,
            None => newest_sale(&stores).await?,
        };
        let plan = self.plan(config, &stores, sale).await?;
        let buyers = Self::new_buyers(config, &stores, &plan).await?;
        let report = seckill_load::run(&plan, buyers, true).await?;
        print::lines([report.render_text()])?;

        let promised: Vec<OrderId> =
            report.accepted.iter().filter_map(|a| Uuid::try_parse(&a.order_id).ok().map(OrderId)).collect();
        let known = stores.ledger.sales.known_orders(sale, &promised).await?.len();
        let lost = promised.len().saturating_sub(known);
        let verdict = stores.audit(sale, config.reconcile.retire_after_ms).await?.context("the sale was removed")?;
        let mut audited = audit::sale_text(&verdict);
        print::lines([&format!("promised with a 202: {}, of them in the ledger: {known}", promised.len()), &audited])?;
        if lost > 0 {
            audited += &format!("\n{}", lost_orders(lost));
        }
        self.write_files(&report, &verdict, lost, &audited)?;
        if lost > 0 {
            bail!("{}", lost_orders(lost));
        }
        if report.wrongly_accepted > 0 {
            bail!("{} requests that must be refused were accepted", report.wrongly_accepted);
        }
        audit::exit_code(&[verdict])
    }

    async fn plan(&self, config: &Config, stores: &Stores, sale: SaleId) -> anyhow::Result<Plan> {
        let paced = self.rate.is_some() || self.seconds.is_some();
        let figures = stores.ledger.sales.sale_figures(&SaleSearch::one(sale)).await?;
        if figures.first().is_some_and(|figures| figures.sale.captcha != CaptchaKind::None) {
            tracing::warn!(%sale, "the sale asks for a challenge, which these buyers do not solve: each will be refused");
        }
        let mut plan = Plan {
            base: self.base.clone().unwrap_or_else(|| format!("http://{}", config.http.bind)),
            sale_id: sale.get(),
            buyers: self.buyers as usize,
            shape: self.shape.unwrap_or(if paced { Shape::Even } else { Shape::Rush }),
            rate: self.rate,
            seconds: self.seconds,
            bots: self.bots as usize,
            connections: self.connections.map_or(seckill_load::CONNECTIONS_MAX, |number| number as usize),
            threads: self.threads as usize,
            no_retries: self.no_retries,
            seed: self.seed,
            stock: figures.first().filter(|f| f.total_stock >= 0).and_then(|f| u64::try_from(f.stock).ok()),
            ..Plan::default()
        };
        let share = |percent: f64| (plan.arriving() as f64 * percent / 100.0).round() as usize;
        let shares = [self.early, self.doubles, self.unknown, self.forged].map(share);
        [plan.early, plan.doubles, plan.unknown, plan.forged] = shares;
        Ok(plan)
    }

    /// Buyers with names of their own in each run, so that no rush meets the orders of an earlier one.
    async fn new_buyers(config: &Config, stores: &Stores, plan: &Plan) -> anyhow::Result<Vec<Buyer>> {
        let prefix = format!("rush-{}-", &Uuid::new_v4().simple().to_string()[..8]);
        let users = (0..plan.identities()).map(|n| format!("{prefix}{n}"));
        let issuer = TokenIssuer::new(config, stores).await?;
        let buyer = |user: String| Ok(Buyer { token: issuer.issue(&UserId::parse(&user)?, LEVEL, TOKEN_TTL_S)?, user });
        users.map(buyer).collect()
    }

    fn write_files(&self, report: &Report, verdict: &SaleVerdict, lost: usize, audited: &str) -> anyhow::Result<()> {
        let write = |file: &Path, text: String| {
            std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
        };
        if let Some(file) = &self.json {
            write(file, json!({ "report": report, "lost": lost, "audit": verdict }).to_string())?;
        }
        if let Some(file) = &self.html {
            write(file, report.render_html(audited)?)?;
        }
        Ok(())
    }
}

fn lost_orders(number: usize) -> String {
    format!("{number} purchases that were answered with 202 are not in the ledger")
}

async fn newest_sale(stores: &Stores) -> anyhow::Result<SaleId> {
    let newest = stores.ledger.sales.sale_figures(&SaleSearch::newest(1)).await?;
    Ok(newest.first().context("there is no sale: create one with `seckill sale create`")?.sale.id)
}
