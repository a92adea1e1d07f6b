//! `migrate` and `seed`: the schema, and a sample to begin with.

use super::ACTOR;
use crate::app::stores;
use seckill_config::Config;
use seckill_domain::sale::{NewSale, ProductChange, SalePhase};
use seckill_domain::stock::Stock;
use seckill_postgres::sales::terms::SaleSearch;

const SAMPLE_PRODUCTS: [(&str, &str); 3] = [
    ("Sample phone", "A phone at a price that brings a crowd."),
    ("Sample headphones", "Over-ear, noise-cancelling, last year's model."),
    ("Sample kettle", "Boils a litre in two minutes."),
];
/// More open sales of a product are looked at by nobody.
const SALES_MAX: i64 = 1000;

pub(super) async fn migrate(config: &Config) -> anyhow::Result<()> {
    stores(config)?.ledger.migrate().await?;
    tracing::info!("the database is up to date");
    Ok(())
}

pub(super) async fn seed(config: &Config) -> anyhow::Result<()> {
    let stores = stores(config)?;
    for (name, description) in SAMPLE_PRODUCTS {
        let description = Some(description.to_owned());
        let change = ProductChange { name: name.to_owned(), description, picture: None, alt: None };
        stores.set_product(&change.check()?, None, ACTOR).await?;
    }
    let product = SAMPLE_PRODUCTS[0].0;
    let now_ms = stores.ledger.now_ms().await?;
    let (phase, text) = (Some(SalePhase::Open), Some(product.to_owned()));
    let search = SaleSearch { phase, text, ..SaleSearch::newest(SALES_MAX) };
    let sales = stores.ledger.sales.sale_figures(&search).await?;
    if let Some(open) = sales.iter().find(|s| s.sale.product == product && s.sale.is_open_at(now_ms)) {
        tracing::info!(sale = %open.sale.id, "the sample sale exists");
        return Ok(());
    }
    let lasting = NewSale {
        ends_in_ms: 30 * 86_400_000,
        ..NewSale::of_defaults(product.to_owned(), 9_900, config.payments.currency, Stock::Units(100))
    };
    let (sale, _) = stores.create_sale(&lasting.check()?, ACTOR).await?;
    tracing::info!(%sale, "created the sample sale");
    Ok(())
}
