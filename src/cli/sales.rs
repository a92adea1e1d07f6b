//! `sale`: creates, shows and changes sales.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use chrono::DateTime;
use clap::{Arg, Subcommand};
use serde_json::json;

use super::arguments::{Format, ListArgs, SaleArg};
use super::print::Row;
use super::{ACTOR, print};
use crate::app::stores;
use seckill_backoffice::admin::sales::ManagedSale;
use seckill_buying::sale::Stores;
use seckill_buying::sale_work::manage::SaleChanged;
use seckill_config::Config;
use seckill_domain::captcha::CaptchaKind;
use seckill_domain::currency::Currency;
use seckill_domain::ids::{IdempotencyKey, SaleId, Units};
use seckill_domain::sale::{NewSale, SaleStatus, Wave};
use seckill_domain::sale_change::{SaleChange, SaleEnd, SaleStart};
use seckill_domain::shards::ShardCount;
use seckill_domain::stock::Stock;
use seckill_postgres::sales::lapsed_holds::LapsedHolds;
use seckill_postgres::sales::terms::{SaleFigures, SaleSearch};
use seckill_postgres::sales::waves::StockAdded;

/// A refill of a million tickets takes some 20 s. Nobody else finishes it sooner.
const REFILL_MAX: Duration = Duration::from_secs(120);

#[derive(Subcommand)]
pub(super) enum SaleCommand {
    /// Create a sale and publish it; returns when every instance that is ready knows the sale
    #[command(mut_args(required_in_create))]
    Create(Box<TermsArgs>),
    /// Change a sale's terms. At any time before the end: the end, the stock, future waves, --keep-refunded, --show-stock. Before the first
    /// purchase also the start, and, before the start or while the sale is paused, all else but --shards
    Set {
        #[command(flatten)]
        sale: SaleArg,
        #[command(flatten)]
        terms: Box<TermsArgs>,
    },
    /// Create a sale with the terms of another one, except for those given. It starts now and lasts as long, unless times are given
    Duplicate {
        #[command(flatten)]
        sale: SaleArg,
        #[command(flatten)]
        terms: Box<TermsArgs>,
    },
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
        /// A repeat with the same key adds nothing
        #[arg(long, value_name = "KEY", value_parser = IdempotencyKey::parse)]
        idempotency_key: Option<IdempotencyKey>,
    },
}

fn required_in_create(arg: Arg) -> Arg {
    let is_required = ["product", "price_cents", "stock"].contains(&arg.get_id().as_str());
    arg.required(is_required)
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

/// The terms of a sale. For a new sale, what is not given is the default; for a sale that exists, it stays.
#[derive(clap::Args)]
pub(super) struct TermsArgs {
    /// Product name; the product is created if it does not exist
    #[arg(long)]
    product: Option<String>,
    /// Price of one unit, in the currency's smallest units; 0 means free
    #[arg(long, value_name = "CENTS")]
    price_cents: Option<i64>,
    /// Currency of the price (ISO 4217) [default: the setting payments.currency]
    #[arg(long, value_name = "CODE")]
    currency: Option<Currency>,
    /// Units for sale, those of waves included; -1 means unlimited
    #[arg(long, value_name = "UNITS", value_parser = stock, allow_negative_numbers = true)]
    stock: Option<Stock>,
    /// Units that one buyer may have [default: 1]
    #[arg(long, value_name = "UNITS", value_parser = units)]
    per_user: Option<Units>,
    /// Seconds from now until the sale starts [default: 0]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    starts_in: Option<i64>,
    /// When the sale starts: a time with its zone, such as 2026-12-01T20:00:00+08:00
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "starts_in")]
    starts_at: Option<i64>,
    /// Seconds from the start until the sale ends [default: 3600]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    ends_in: Option<i64>,
    /// When the sale ends: a time with its zone, such as 2026-12-01T21:00:00+08:00
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "ends_in")]
    ends_at: Option<i64>,
    /// Do not sell refunded units again
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    keep_refunded: Option<bool>,
    /// Show buyers how far the sale is sold, in per cent
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    show_stock: Option<bool>,
    /// Seconds that a buyer has to pay; an order that is not paid by then expires [default: 900]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    pay_within: Option<i64>,
    /// Lowest buyer level that may buy [default: 0]
    #[arg(long, value_name = "LEVEL")]
    min_level: Option<i64>,
    /// What buyers must solve before they buy: none, image (a picture to read), slider (a piece to drag) or work (a proof of work
    /// that the page does) [default: none]
    #[arg(long, value_name = "KIND", value_parser = CaptchaKind::parse)]
    captcha: Option<CaptchaKind>,
    /// Into how many parts the stock is divided, 1 to 64, which may lie on different servers of a Redis Cluster; a sale for a larger
    /// crowd than one server bears. It can never be changed [default: 1]
    #[arg(long, value_name = "NUMBER", value_parser = shards)]
    shards: Option<ShardCount>,
    /// Hold back UNITS of the stock until SECONDS after the start; may be given several times. In a sale that exists, these are the waves to
    /// come, instead of all that were planned
    #[arg(long = "wave", value_name = "SECONDS:UNITS", value_parser = Wave::parse)]
    waves: Vec<Wave>,
    /// Plan no waves
    #[arg(long, conflicts_with = "waves")]
    no_waves: bool,
}

impl TermsArgs {
    fn change(self) -> SaleChange {
        let is_given = self.no_waves || !self.waves.is_empty();
        SaleChange {
            product: self.product,
            price_cents: self.price_cents,
            currency: self.currency,
            stock: self.stock,
            per_user: self.per_user,
            starts: self.starts_at.map(SaleStart::AtMs).or(self.starts_in.map(SaleStart::InMs)),
            ends: self.ends_at.map(SaleEnd::AtMs).or(self.ends_in.map(SaleEnd::AfterStartMs)),
            pay_within_ms: self.pay_within,
            refund_returns_stock: self.keep_refunded.map(|keep| !keep),
            show_stock: self.show_stock,
            min_level: self.min_level,
            captcha: self.captcha,
            shards: self.shards,
            waves: is_given.then_some(self.waves),
        }
    }
}

/// In milliseconds.
fn seconds(text: &str) -> anyhow::Result<i64> {
    text.parse::<i64>()?.checked_mul(1000).context("out of range")
}

/// In milliseconds since the epoch.
fn time(text: &str) -> anyhow::Result<i64> {
    let time = DateTime::parse_from_rfc3339(text);
    let time = time.map_err(|_| anyhow!("must be a date, a time and its zone, such as 2026-12-01T20:00:00+08:00"))?;
    Ok(time.timestamp_millis())
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
            Self::Set { sale: SaleArg { id }, terms } => {
                match stores.change_sale(id, &terms.change(), REFILL_MAX, ACTOR).await?? {
                    SaleChanged::Unknown => bail!("there is no sale {id}"),
                    SaleChanged::Same => {
                        tracing::info!(sale = %id, "nothing to change");
                        Ok(())
                    }
                    SaleChanged::Done => {
                        tracing::info!(sale = %id, "changed");
                        Ok(())
                    }
                }
            }
            Self::Duplicate { sale: SaleArg { id }, terms } => duplicate(&stores, id, terms.change()).await,
            Self::AddStock { sale: SaleArg { id }, units, idempotency_key } => {
                match stores.add_stock(id, units, idempotency_key.as_ref(), ACTOR).await? {
                    StockAdded::Now => tracing::info!(sale = %id, units, "stock added"),
                    StockAdded::Before => tracing::info!(sale = %id, units, "this key has added the stock before"),
                    StockAdded::OtherUnits => bail!("this key has added another number of units; use a new key"),
                    StockAdded::Impossible => bail!("sale {id} does not exist, is closed, or its stock is unlimited"),
                }
                Ok(())
            }
        }
    }
}

async fn create(stores: &Stores, args: TermsArgs, currency: Currency) -> anyhow::Result<()> {
    let change = args.change();
    let (Some(product), Some(price_cents), Some(stock)) = (change.product.clone(), change.price_cents, change.stock)
    else {
        bail!("--product, --price-cents and --stock are needed");
    };
    let plain = NewSale::of_defaults(product, price_cents, currency, stock);
    plan(stores, &plain, change, NewSale::LASTS_MS).await
}

async fn duplicate(stores: &Stores, of: SaleId, change: SaleChange) -> anyhow::Result<()> {
    let Some((standing, _)) = stores.ledger.sales.standing(of, &SaleChange::default()).await? else {
        bail!("there is no sale {of}")
    };
    // All waves, also those that are released.
    let figures = stores.ledger.sales.sale_figures(&SaleSearch::one(of)).await?.pop();
    let planned = figures.map(|figures| figures.sale.waves).unwrap_or_default();
    let waves = planned.iter().map(|wave| Wave { after_ms: wave.after_s * 1000, units: wave.units }).collect();
    let plain = NewSale { waves, ..standing.terms };
    let lasts_ms = plain.ends_in_ms - plain.starts_in_ms;
    let starts = change.starts.or(Some(SaleStart::InMs(0)));
    plan(stores, &plain, SaleChange { starts, ..change }, lasts_ms).await
}

/// Plans a sale with these terms and the change. Without an end, it ends `lasts_ms` after its start.
async fn plan(stores: &Stores, plain: &NewSale, change: SaleChange, lasts_ms: i64) -> anyhow::Result<()> {
    let ends = change.ends.or(Some(SaleEnd::AfterStartMs(lasts_ms)));
    let now_ms = stores.ledger.now_ms().await?;
    let new = SaleChange { ends, ..change }.of(plain, now_ms);
    let (sale, known_everywhere) = stores.create_sale_from(&new.check()?, Some(now_ms), ACTOR).await?;
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

fn sale_row(of: ManagedSale) -> Row<15> {
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
        ("show_stock", of.show_stock.into()),
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
