//! The rush, and the tokens that its buyers need.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::json;
use uuid::Uuid;

use super::{TokenArgs, ask, print};
use crate::app::stores;
use crate::config::Config;
use crate::domain::ids::{OrderId, SaleId, UserId};
use crate::http::Tokens;
use crate::sale::Stores;
use crate::sale::audit::SaleVerdict;
use seckill_load::{Buyer, Plan, Shape, Verdict};

#[derive(clap::Args)]
pub struct LoadArgs {
    /// The sale; without it, the newest
    #[arg(long)]
    sale: Option<i64>,
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    buyers: u32,
    /// How the buyers spread over time; without it, a rush, or even where --rate or --seconds is given
    #[arg(long, value_enum)]
    shape: Option<Shape>,
    /// Buyers arriving in a second, on average; an even crowd without it, and without --seconds, comes as fast as the
    /// machine carries
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// Seconds over which the buyers arrive; a rush takes 10 unless this or --rate says otherwise
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// Bots, each with one token and twenty requests
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    bots: u32,
    /// Of the buyers, those who also click before the start, where the sale is not open yet; in percent, as the next three
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    early: f64,
    /// Those who click twice: a second request a moment later, with the same Idempotency-Key
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    doubles: f64,
    /// Further requests, for sales that do not exist
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    unknown: f64,
    /// Further requests, with tokens whose signature was altered
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    forged: f64,
    /// Connections kept open, each with one request at a time
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Random, but the same for the same seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the service is; without it, where the configuration says
    #[arg(long)]
    base: Option<String>,
    /// Write the report to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the report, with pictures, to this file: one page that needs nothing else
    #[arg(long)]
    html: Option<PathBuf>,
}

fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text.trim_end_matches('%').parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=100.0).contains(&number) { Ok(number) } else { Err("not within 0 and 100".to_owned()) }
}

/// How long the buyers' tokens are good for.
const TOKEN_S: i64 = 3600;

pub async fn load(config: &Config, args: LoadArgs) -> anyhow::Result<ExitCode> {
    let stores = stores(config)?;
    let sale = match args.sale {
        Some(id) => SaleId::from_db(id),
        None => newest_sale(&stores).await?,
    };
    let paced = args.rate.is_some() || args.seconds.is_some();
    let figures = stores.ledger.sale_figures(Some(sale), 1).await?;
    let mut plan = Plan {
        base: args.base.unwrap_or_else(|| format!("http://{}", config.http.bind)),
        sale_id: sale.get(),
        buyers: args.buyers as usize,
        shape: args.shape.unwrap_or(if paced { Shape::Even } else { Shape::Rush }),
        rate: args.rate,
        seconds: args.seconds,
        bots: args.bots as usize,
        connections: args.connections as usize,
        seed: args.seed,
        stock: figures.first().filter(|f| f.total_stock >= 0).and_then(|f| u64::try_from(f.stock).ok()),
        ..Plan::default()
    };
    let share = |percent: f64| (plan.arriving() as f64 * percent / 100.0).round() as usize;
    let shares = [args.early, args.doubles, args.unknown, args.forged].map(share);
    [plan.early, plan.doubles, plan.unknown, plan.forged] = shares;
    // New buyers every time: a rush that meets its own orders again would tell little.
    let prefix = format!("rush-{}-", &Uuid::new_v4().simple().to_string()[..8]);
    let mint = Mint::new(config, &stores).await?;
    let buyers = (0..plan.identities())
        .map(|n| {
            let user = format!("{prefix}{n}");
            Ok(Buyer { token: mint.token(&user, i64::from(i32::MAX), TOKEN_S)?, user })
        })
        .collect::<anyhow::Result<_>>()?;
    let report = seckill_load::run(&plan, buyers, true).await?;
    eprintln!("{}", report.render_text());

    let orders: Vec<OrderId> =
        report.accepted.iter().filter_map(|a| Uuid::try_parse(&a.order_id).ok().map(OrderId)).collect();
    let known = stores.ledger.known_orders(&orders).await?.len();
    let lost = orders.len().saturating_sub(known);
    let verdict = stores.audit(sale, config.reconcile.retire_after_ms).await?.context("the sale has gone")?;
    eprintln!("promised with a 202: {}, of them in the ledger: {known}", orders.len());
    let write = |file: PathBuf, text: String| {
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    if let Some(file) = args.json {
        let document = json!({ "report": report, "lost": lost, "audit": verdict });
        write(file, document.to_string())?;
    }
    if let Some(file) = args.html {
        write(file, report.render_html(&in_words(&verdict, orders.len(), lost)))?;
    }
    print::verdict(&verdict);
    if lost > 0 {
        bail!("{lost} purchases that were answered with 202 are not in the ledger");
    }
    if report.wrongly_accepted > 0 {
        bail!("{} requests that have to be refused were accepted", report.wrongly_accepted);
    }
    ask::judge(&[verdict])
}

/// The verdict for the page.
fn in_words(verdict: &SaleVerdict, promised: usize, lost: usize) -> Verdict {
    let grouped = |number: i64| u64::try_from(number).map_or_else(|_| number.to_string(), seckill_load::grouped);
    let flight = verdict.in_flight;
    let state = match (verdict.at_rest, verdict.retired, verdict.redis_compared) {
        (true, true, _) => "long over".to_owned(),
        (true, false, true) => "at rest, and Redis agrees with the ledger".to_owned(),
        (true, false, false) => "at rest; Redis could not be compared".to_owned(),
        (false, ..) => format!(
            "still in flight: {} units promised, {} unconfirmed, {} unreleased; {} messages",
            grouped(flight.promised_units),
            grouped(flight.unconfirmed_units),
            grouped(flight.unreleased_units),
            grouped(flight.messages)
        ),
    };
    let of_stock = |units: i64| if verdict.total_stock < 0 { "unlimited".to_owned() } else { grouped(units) };
    let mut problems: Vec<String> = verdict
        .findings
        .iter()
        .flat_map(|found| {
            let evidence = found.evidence.iter().map(ToString::to_string);
            std::iter::once(format!("{}: {}", found.invariant, found.problem)).chain(evidence)
        })
        .collect();
    if lost > 0 {
        problems.push(format!("{lost} purchases that were answered with 202 are not in the ledger"));
    }
    Verdict {
        held: verdict.held && lost == 0,
        facts: vec![
            ("State", state),
            (
                "Promised with a 202",
                format!(
                    "{} orders, of them in the ledger {}",
                    seckill_load::grouped(promised as u64),
                    seckill_load::grouped((promised - lost) as u64)
                ),
            ),
            ("Stock in all", of_stock(verdict.total_stock)),
            ("Left", of_stock(verdict.stock)),
            ("In live orders", grouped(verdict.live_units)),
            ("For sale in Redis", verdict.redis_available.map_or_else(|| "-".to_owned(), grouped)),
        ],
        problems,
    }
}

async fn newest_sale(stores: &Stores) -> anyhow::Result<SaleId> {
    let newest = stores.ledger.sale_figures(None, 1).await?;
    Ok(newest.first().context("there is no sale: make one with `seckill sale create`")?.sale.id)
}

pub async fn tokens(config: &Config, args: TokenArgs) -> anyhow::Result<()> {
    let stores = stores(config)?;
    let mint = Mint::new(config, &stores).await?;
    match (args.user, args.count, args.prefix, args.out) {
        (Some(user), ..) => println!("{}", mint.token(&user, args.level, args.ttl)?),
        (None, Some(count), Some(prefix), Some(file)) => {
            let mut lines = String::new();
            for n in 1..=count {
                let user = format!("{prefix}{n}");
                writeln!(lines, "{user} {}", mint.token(&user, args.level, args.ttl)?)?;
            }
            std::fs::write(&file, lines).with_context(|| format!("cannot write {}", file.display()))?;
        }
        _ => bail!("give --user, or --count with --prefix and --out"),
    }
    Ok(())
}

/// Makes tokens, by the database's clock as everything that is judged by it.
struct Mint {
    tokens: Tokens,
    now_s: i64,
}

impl Mint {
    async fn new(config: &Config, stores: &Stores) -> anyhow::Result<Self> {
        if !config.dev {
            bail!("tokens are made in development mode only (SECKILL_DEV=1)");
        }
        Ok(Self {
            tokens: Tokens::new(&config.auth.jwt_secret, &config.auth.jwt_public_key, config.dev)?,
            now_s: stores.ledger.now_ms().await? / 1000,
        })
    }

    fn token(&self, user: &str, level: i64, ttl_s: i64) -> anyhow::Result<String> {
        let user = UserId::parse(user)?;
        let token = self.tokens.issue(&user, level, self.now_s + ttl_s);
        token.context("with a public key configured, only the holder of the private key makes tokens")
    }
}
