//! The composition root: connects the parts, binds the address, runs, and stops without losing an accepted purchase.

mod connection;
mod front;
mod http_server;
mod parts;
mod service;
mod slices;
mod upkeep;
mod worker_names;
mod worker_wiring;
mod workers;

pub use service::{Service, Stopper};
pub use worker_names::Worker;
pub use workers::work;

use seckill_buying::sale::Stores;
use seckill_channel::Channels;
use seckill_config::Config;
use seckill_domain::origin::Origin;
use seckill_money::PaymentService;
use seckill_pages as pages;
use seckill_postgres::Ledger;
use seckill_postgres::notices::Notifier;
use seckill_redis::Gate;

/// Handles on Redis and PostgreSQL. They connect on the first call.
pub fn stores(config: &Config) -> anyhow::Result<Stores> {
    Ok(Stores {
        ledger: Ledger::new(&config.database, config.purchase.committers)?,
        gate: Gate::new(&config.redis, &config.purchase)?,
    })
}

/// The settings for rendering pages. `api`: the API's origin, if it differs from the pages'.
pub(crate) fn page_settings(config: &Config, api: Option<Origin>) -> anyhow::Result<pages::Settings> {
    Ok(pages::Settings {
        origin: config.pages.origin.clone(),
        api,
        id_claim: config.auth.jwt_claim_id.clone(),
        level_claim: config.auth.jwt_claim_level.clone(),
        look: pages::Look::read(&config.pages)?,
    })
}

/// Payments and refunds, for commands. Sends no notices: workers find the work by polling.
pub fn payment_service(config: &Config) -> anyhow::Result<PaymentService> {
    notifying_payment_service(config, stores(config)?.ledger, Notifier::default())
}

fn notifying_payment_service(config: &Config, ledger: Ledger, notifier: Notifier) -> anyhow::Result<PaymentService> {
    let channels = Channels::new(&config.channels)?;
    Ok(PaymentService::new(ledger, channels, notifier, config.payments.clone()))
}
