//! `sale`: creates, shows and changes sales.

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;

use super::arguments::{Format, ListArgs, SaleArg};
use super::print::Row;
use super::{ACTOR, print};
use crate::app::stores;
use seckill_backoffice::admin::sales::ManagedSale;
use seckill_buying::sale::Stores;
use seckill_config::Config;
use seckill_domain::captcha::CaptchaKind;
use seckill_domain::currency::Currency;
use seckill_domain::ids::Units;
use seckill_domain::sale::{NewSale, SaleStatus, Wave};
use seckill_domain::shards::ShardCount;
use seckill_domain::stock::Stock;
use seckill_postgres::sales::lapsed_holds::LapsedHolds;
use seckill_postgres::sales::terms::{SaleFigures, SaleSearch};

#[derive(Subcommand)]
pub(super) enum SaleCommand {
    /// Create a sale and publish it; returns when every instance that is ready knows the sale
    Create(Box<CreateArgs>),
    /// Show one sale
    Show {
        #[command(flatten)]
        sale: SaleArg,
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Show sales, newest first
    List(ListArgs),
    /// Close a sale for good; its orders stay
    Close(SaleArg),
    /// Stop selling until `sale resume`
    Pause(SaleArg),
    /// Continue a paused sale
    Resume(SaleArg),
    /// Remove a sale that has no orders
    Remove(SaleArg),
    /// Count the lapsed holds of a sale, most first
    LapsedHolds {
        #[command(flatten)]
        sale: SaleArg,
        /// One row for each
        #[arg(long, value_enum, default_value_t)]
        by: LapsedBy,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Add units to a sale's stock
    AddStock {
        #[command(flatten)]
        sale: SaleArg,
        /// Number of units to add
        #[arg(value_parser = clap::value_parser!(i32).range(1..), allow_negative_numbers = true)]
        units: i32,
    },
}

/// Lapsed holds are counted by this.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LapsedBy {
    /// The buyer who took them
    #[default]
    Buyer,
    /// The network address that they were taken from: an IPv4 address, or an IPv6 /64
    Address,
}

#[derive(clap::Args)]
pub(super) struct CreateArgs {
    /// Product name; the product is created if it does not exist
    #[arg(long)]
    product: String,
    /// Price of one unit, in the currency's smallest units; 0 means free
    #[arg(long, value_name = "CENTS")]
    price_cents: i64,
    /// Currency of the price (ISO 4217), which can never be changed; by default the setting payments.currency
    #[arg(long, value_name = "CODE")]
    currency: Option<Currency>,
    /// Units for sale; -1 means unlimited
    #[arg(long, value_name = "UNITS", value_parser = stock, allow_negative_numbers = true)]
    stock: Stock,
    /// Units that one buyer may have
    #[arg(long, value_name = "UNITS", default_value = "1", value_parser = units)]
    per_user: Units,
    /// Seconds from now until the sale starts
    #[arg(long, value_name = "SECONDS", default_value_t = 0, allow_negative_numbers = true)]
    starts_in: i64,
    /// Seconds from now until the sale ends
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, allow_negative_numbers = true)]
    ends_in: i64,
    /// Do not sell refunded units again
    #[arg(long)]
    keep_refunded: bool,
    /// Seconds that a buyer has to pay; an order that is not paid by then expires
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pay_within: i64,
    /// Lowest buyer level that may buy
    #[arg(long, value_name = "LEVEL", default_value_t = 0)]
    min_level: i64,
    /// What buyers must solve before they buy: none, image (a picture to read), slider (a piece to drag) or work (a proof of work
    /// that the page does)
    #[arg(long, value_name = "KIND", default_value_t, value_parser = CaptchaKind::parse)]
    captcha: CaptchaKind,
    /// Into how many parts the stock is divided, 1 to 64, which may lie on different servers of a Redis Cluster; a sale for a larger
    /// crowd than one server bears. It can never be changed
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = shards)]
    shards: ShardCount,
    /// Hold back UNITS of the stock until SECONDS after the start; may be given several times
    #[arg(long = "wave", value_name = "SECONDS:UNITS", value_parser = Wave::parse)]
    waves: Vec<Wave>,
}

fn stock(text: &str) -> anyhow::Result<Stock> {
    Ok(Stock::parse(text.parse()?)?)
}

fn units(text: &str) -> anyhow::Result<Units> {
    Ok(Units::parse(text.parse()?)?)
}

fn shards(text: &str) -> anyhow::Result<ShardCount> {
    Ok(ShardCount::parse(text.parse()?)?)
}

impl SaleCommand {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let stores = stores(config)?;
        match self {
            Self::Create(args) => create(&stores, *args, config.payments.currency).await,
            Self::Show { sale: SaleArg { id }, format } => {
                let sales = stores.ledger.sales.sale_figures(&SaleSearch::one(id)).await?;
                if sales.is_empty() {
                    bail!("there is no sale {id}");
                }
                let now_ms = stores.ledger.now_ms().await?;
                print::rows(sales.into_iter().map(|figures| sale_row(ManagedSale::new(figures, now_ms))), format)
            }
            Self::List(list) => {
                let now_ms = stores.ledger.now_ms().await?;
                let next = async |last: Option<SaleFigures>, n| {
                    stores.ledger.sales.sale_figures(&SaleSearch::after(last.as_ref(), n)).await
                };
                print::pages(&list, next, |figures| sale_row(ManagedSale::new(figures, now_ms))).await
            }
            Self::Close(sale) => set_status(&stores, sale, SaleStatus::Closed).await,
            Self::Pause(sale) => set_status(&stores, sale, SaleStatus::Paused).await,
            Self::Resume(sale) => set_status(&stores, sale, SaleStatus::Open).await,
            Self::Remove(SaleArg { id }) => {
                if !stores.remove_sale(id, ACTOR).await? {
                    bail!("sale {id} does not exist, or has orders: a sale with orders can be closed, not removed");
                }
                tracing::info!(sale = %id, "removed");
                Ok(())
            }
            Self::LapsedHolds { sale: SaleArg { id }, by, list } => {
                let by_address = by == LapsedBy::Address;
                print::whole(
                    &list,
                    stores.ledger.sales.lapsed_holds(id, by_address, list.read_max()).await?,
                    lapsed_row,
                )
            }
            Self::AddStock { sale: SaleArg { id }, units } => {
                if !stores.add_stock(id, units, ACTOR).await? {
                    bail!("sale {id} does not exist, or its stock is unlimited");
                }
                tracing::info!(sale = %id, units, "stock added");
                Ok(())
            }
        }
    }
}

async fn create(stores: &Stores, args: CreateArgs, currency: Currency) -> anyhow::Result<()> {
    let ms =
        |seconds: i64, option: &str| seconds.checked_mul(1000).with_context(|| format!("{option} is out of range"));
    let new = NewSale {
        product: args.product,
        price_cents: args.price_cents,
        currency: args.currency.unwrap_or(currency),
        stock: args.stock,
        per_user: args.per_user,
        starts_in_ms: ms(args.starts_in, "--starts-in")?,
        ends_in_ms: ms(args.ends_in, "--ends-in")?,
        pay_within_ms: ms(args.pay_within, "--pay-within")?,
        refund_returns_stock: !args.keep_refunded,
        min_level: args.min_level,
        captcha: args.captcha,
        shards: args.shards,
        waves: args.waves,
    };
    let (sale, known_everywhere) = stores.create_sale(&new.check()?, ACTOR).await?;
    if !known_everywhere {
        tracing::warn!(%sale, "created, but a live instance has not confirmed that it knows the sale");
    }
    print::json(&json!({ "sale_id": sale }))
}

async fn set_status(stores: &Stores, SaleArg { id }: SaleArg, status: SaleStatus) -> anyhow::Result<()> {
    if !stores.set_sale_status(id, status, ACTOR).await? {
        bail!("sale {id} does not exist, or is closed for good");
    }
    tracing::info!(sale = %id, %status, "status set");
    Ok(())
}

fn sale_row(of: ManagedSale) -> Row<14> {
    Row([
        ("id", of.id.get().into()),
        ("product", of.product.into()),
        ("price_cents", of.price_cents.into()),
        ("currency", of.currency.code().into()),
        ("total_stock", of.total_stock.into()),
        ("stock", of.stock.into()),
        ("per_user", of.per_user.get().into()),
        ("min_level", of.min_level.into()),
        ("captcha", of.captcha.as_str().into()),
        ("shards", of.shards.into()),
        ("status", of.status.as_str().into()),
        ("starts_at", print::time(of.starts_at_ms).into()),
        ("ends_at", print::time(of.ends_at_ms).into()),
        ("pay_within_s", of.pay_within_s.into()),
    ])
}

fn lapsed_row(of: LapsedHolds) -> Row<6> {
    Row([
        ("name", of.name.unwrap_or_else(|| "unknown".to_owned()).into()),
        ("holds", of.holds.into()),
        ("units", of.units.into()),
        ("buyers", of.buyers.into()),
        ("addresses", of.addresses.into()),
        ("last_lapsed_at", print::time(of.last_lapsed_at_ms).into()),
    ])
}
