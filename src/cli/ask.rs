//! Commands that ask or tell the ledger something.

use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::json;

use super::{ACTOR, CouldNotRun, CreateArgs, Format, OrdersArgs, print};
use crate::app::{payment_service, stores};
use crate::config::Config;
use crate::domain::ids::{SaleId, Units};
use crate::domain::sale::{NewSale, SaleStatus, Stock};
use crate::ledger::orders::read::OrderFilter;
use crate::ledger::sales::terms::SaleFigures;
use crate::sale::Stores;
use crate::sale::audit::SaleVerdict;

/// Sales that are audited in one go.
const AUDIT_MAX: i64 = 100_000;

pub async fn migrate(config: &Config) -> anyhow::Result<()> {
    stores(config)?.ledger.migrate().await?;
    tracing::info!("the database is up to date");
    Ok(())
}

pub async fn seed(config: &Config) -> anyhow::Result<()> {
    let stores = stores(config)?;
    let samples = [
        ("Sample phone", "A phone at a price that brings a crowd."),
        ("Sample headphones", "Over-ear, noise-cancelling, last year's model."),
        ("Sample kettle", "Boils a litre in two minutes."),
    ];
    for (name, description) in samples {
        stores.ledger.put_product(name, description).await?;
    }
    let now_ms = stores.ledger.now_ms().await?;
    let sales = stores.ledger.sale_figures(None, AUDIT_MAX).await?;
    if let Some(open) = sales.iter().find(|s| s.sale.product == samples[0].0 && s.sale.is_open_at(now_ms)) {
        tracing::info!(sale = %open.sale.id, "the sample sale is there");
        return Ok(());
    }
    let new = NewSale {
        product: samples[0].0.to_owned(),
        price_cents: 9_900,
        stock: Stock::Units(100),
        per_user: Units::ONE,
        starts_in_ms: 0,
        ends_in_ms: 30 * 86_400_000,
        pay_within_ms: 900_000,
        refund_returns_stock: true,
        min_level: 0,
        waves: Vec::new(),
    };
    let (sale, _) = stores.create_sale(&new.check()?, config.reconcile.retire_after_ms).await?;
    tracing::info!(%sale, "sample sale made");
    Ok(())
}

pub async fn create_sale(config: &Config, args: CreateArgs) -> anyhow::Result<()> {
    let seconds = |s: i64, name: &str| s.checked_mul(1000).with_context(|| format!("{name} is out of range"));
    let new = NewSale {
        product: args.product,
        price_cents: args.price_cents,
        stock: Stock::parse(args.stock)?,
        per_user: Units::parse(args.per_user)?,
        starts_in_ms: seconds(args.starts_in, "starts-in")?,
        ends_in_ms: seconds(args.ends_in, "ends-in")?,
        pay_within_ms: seconds(args.pay_within, "pay-within")?,
        refund_returns_stock: !args.keep_refunded,
        min_level: args.min_level,
        waves: args.waves,
    };
    let (sale, everyone) = stores(config)?.create_sale(&new.check()?, config.reconcile.retire_after_ms).await?;
    if !everyone {
        tracing::warn!(%sale, "made, but an instance that should be alive has not said that it knows it");
    }
    println!("{}", json!({ "sale_id": sale }));
    Ok(())
}

pub async fn show_sale(config: &Config, id: i64, format: Format) -> anyhow::Result<()> {
    let stores = stores(config)?;
    let sales = stores.ledger.sale_figures(Some(SaleId::from_db(id)), 1).await?;
    if sales.is_empty() {
        bail!("there is no sale {id}");
    }
    print_sales(&stores, &sales, format).await
}

pub async fn list_sales(config: &Config, format: Format, limit: i64) -> anyhow::Result<()> {
    let stores = stores(config)?;
    let sales = stores.ledger.sale_figures(None, limit).await?;
    print_sales(&stores, &sales, format).await
}

async fn print_sales(stores: &Stores, sales: &[SaleFigures], format: Format) -> anyhow::Result<()> {
    let now_ms = stores.ledger.now_ms().await?;
    print::rows(sales.iter().map(|s| print::SaleLine::new(s, now_ms)), format)
}

pub async fn steer(config: &Config, id: i64, status: SaleStatus) -> anyhow::Result<()> {
    if !stores(config)?.set_sale_status(SaleId::from_db(id), status, ACTOR).await? {
        bail!("there is no sale {id}, or it is closed for good");
    }
    tracing::info!(sale = id, %status, "done");
    Ok(())
}

pub async fn remove_sale(config: &Config, id: i64) -> anyhow::Result<()> {
    if !stores(config)?.remove_sale(SaleId::from_db(id), ACTOR).await? {
        bail!("there is no sale {id}, or it has orders: close it instead");
    }
    tracing::info!(sale = id, "removed");
    Ok(())
}

pub async fn add_stock(config: &Config, id: i64, units: i32) -> anyhow::Result<()> {
    if !stores(config)?.add_stock(SaleId::from_db(id), units, ACTOR).await? {
        bail!("there is no sale {id} with a stock to add to");
    }
    tracing::info!(sale = id, units, "done");
    Ok(())
}

pub async fn orders(config: &Config, args: OrdersArgs) -> anyhow::Result<()> {
    let filter =
        OrderFilter { sale: args.sale.map(SaleId::from_db), status: args.status, user: args.user, limit: args.limit };
    let orders = stores(config)?.ledger.orders(&filter).await?;
    print::rows(orders.iter().map(print::OrderLine::from), args.format)
}

pub async fn parked(config: &Config, format: Format, limit: i64) -> anyhow::Result<()> {
    let rows = stores(config)?.ledger.parked(limit).await?;
    print::rows(rows.iter().map(print::ParkedLine::from), format)
}

pub async fn alarms(config: &Config, format: Format, limit: i64) -> anyhow::Result<()> {
    let alarms = stores(config)?.ledger.alarms(limit).await?;
    print::rows(alarms.iter().map(print::AlarmLine::from), format)
}

pub async fn retry(config: &Config, ids: &[i64]) -> anyhow::Result<()> {
    let stores = stores(config)?;
    let rows = stores.ledger.unpark(ids, ACTOR).await?;
    stores.ledger.notify(crate::ledger::notices::Topic::Outbox).await?;
    println!("{}", json!({ "retried": rows }));
    Ok(())
}

pub async fn audit(config: &Config, sale: Option<i64>, channel: bool, json: bool) -> anyhow::Result<ExitCode> {
    let stores = stores(config)?;
    let could_not = |why: String| anyhow::Error::new(CouldNotRun(why));
    let sales = match sale {
        Some(id) => vec![SaleId::from_db(id)],
        None => {
            let all = stores.ledger.sale_figures(None, AUDIT_MAX).await.map_err(|e| could_not(e.to_string()))?;
            all.into_iter().map(|figures| figures.sale.id).collect()
        }
    };
    let mut verdicts = Vec::new();
    for sale in sales {
        let verdict =
            stores.audit(sale, config.reconcile.retire_after_ms).await.map_err(|e| could_not(e.to_string()))?;
        verdicts.push(verdict.ok_or_else(|| could_not(format!("there is no sale {sale}")))?);
    }
    let channels = match channel {
        true => payment_service(config)?.compare().await.map_err(|e| could_not(e.to_string()))?,
        false => Vec::new(),
    };
    let agreed = channels.iter().all(|channel| channel.held);
    if json {
        let held = agreed && verdicts.iter().all(|verdict| verdict.held);
        println!("{}", json!({ "held": held, "sales": verdicts, "channels": channels }));
    } else {
        verdicts.iter().for_each(print::verdict);
        channels.iter().for_each(print::channel_verdict);
    }
    if agreed { judge(&verdicts) } else { Ok(ExitCode::from(1)) }
}

/// The exit code: 1 as soon as something is broken, 2 when nothing is, but not all could be looked at.
pub fn judge(verdicts: &[SaleVerdict]) -> anyhow::Result<ExitCode> {
    if verdicts.iter().any(|verdict| !verdict.held) {
        return Ok(ExitCode::from(1));
    }
    let unseen = verdicts.iter().find(|verdict| verdict.at_rest && !verdict.redis_compared && !verdict.retired);
    match unseen {
        Some(verdict) => Err(CouldNotRun(format!("Redis does not serve sale {}", verdict.sale_id)).into()),
        None => Ok(ExitCode::SUCCESS),
    }
}
