//! The rush, and the tokens that its buyers need.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::json;
use uuid::Uuid;

use super::{TokenArgs, ask, print};
use crate::app::shop;
use crate::config::Config;
use crate::domain::ids::{OrderId, SaleId, UserId};
use crate::http::Tokens;
use crate::load::{self, Buyer, Plan};
use crate::sale::Shop;

#[derive(clap::Args)]
pub struct LoadArgs {
    /// The sale; without it, the newest
    #[arg(long)]
    sale: Option<i64>,
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    buyers: u32,
    /// Buyers arriving in a second; without it, and without --seconds, as fast as the machine carries
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// Seconds over which the buyers arrive
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// Bots, each with one token and twenty requests
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    bots: u32,
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
}

/// How long the buyers' tokens are good for.
const TOKEN_S: i64 = 3600;

pub async fn load(config: &Config, args: LoadArgs) -> anyhow::Result<ExitCode> {
    let shop = shop(config)?;
    let sale = match args.sale {
        Some(id) => SaleId::from_db(id),
        None => newest_sale(&shop).await?,
    };
    let plan = Plan {
        base: args.base.unwrap_or_else(|| format!("http://{}", config.http.bind)),
        sale_id: sale.get(),
        buyers: args.buyers as usize,
        rate: args.rate,
        seconds: args.seconds,
        bots: args.bots as usize,
        connections: args.connections as usize,
        seed: args.seed,
        ..Plan::default()
    };
    // New buyers every time: a rush that meets its own orders again would tell little.
    let prefix = format!("rush-{}-", &Uuid::new_v4().simple().to_string()[..8]);
    let mint = Mint::new(config, &shop).await?;
    let buyers = (0..plan.identities())
        .map(|n| {
            let user = format!("{prefix}{n}");
            Ok(Buyer { token: mint.token(&user, i64::from(i32::MAX), TOKEN_S)?, user })
        })
        .collect::<anyhow::Result<_>>()?;
    let report = load::run(&plan, buyers, true).await?;
    eprintln!("{}", report.render_text());

    let orders: Vec<OrderId> =
        report.accepted.iter().filter_map(|a| Uuid::try_parse(&a.order_id).ok().map(OrderId)).collect();
    let known = shop.ledger.known_orders(&orders).await?.len();
    let lost = orders.len().saturating_sub(known);
    let verdict = shop.audit(sale, config.reconcile.retire_after_ms).await?.context("the sale has gone")?;
    eprintln!("promised with a 202: {}, of them in the ledger: {known}", orders.len());
    if let Some(file) = args.json {
        let document = json!({ "report": report, "lost": lost, "audit": verdict });
        std::fs::write(&file, document.to_string()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    print::verdict(&verdict);
    if lost > 0 {
        bail!("{lost} purchases that were answered with 202 are not in the ledger");
    }
    ask::judge(&[verdict])
}

async fn newest_sale(shop: &Shop) -> anyhow::Result<SaleId> {
    let newest = shop.ledger.sale_figures(None, 1).await?;
    Ok(newest.first().context("there is no sale: make one with `seckill sale create`")?.sale.id)
}

pub async fn tokens(config: &Config, args: TokenArgs) -> anyhow::Result<()> {
    let shop = shop(config)?;
    let mint = Mint::new(config, &shop).await?;
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
    async fn new(config: &Config, shop: &Shop) -> anyhow::Result<Self> {
        if !config.dev {
            bail!("tokens are made in development mode only (SECKILL_DEV=1)");
        }
        Ok(Self {
            tokens: Tokens::new(&config.auth.jwt_secret, &config.auth.jwt_public_key, config.dev)?,
            now_s: shop.ledger.now_ms().await? / 1000,
        })
    }

    fn token(&self, user: &str, level: i64, ttl_s: i64) -> anyhow::Result<String> {
        let user = UserId::parse(user)?;
        let token = self.tokens.issue(&user, level, self.now_s + ttl_s);
        token.context("with a public key configured, only the holder of the private key makes tokens")
    }
}
