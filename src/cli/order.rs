//! `order`: shows one order.

use anyhow::Context;
use clap::Subcommand;

use super::arguments::{Format, order_id};
use super::print::{self, Row};
use crate::app::stores;
use seckill_backoffice::admin::order_lines::OrderLine;
use seckill_config::Config;
use seckill_domain::ids::OrderId;

#[derive(Subcommand)]
pub(super) enum OrderCommand {
    /// Show an order, with its history; as JSON, also with its payments, refunds and messages
    Show {
        /// The order's id
        #[arg(value_name = "ORDER_ID", value_parser = order_id, allow_negative_numbers = true)]
        id: OrderId,
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}

impl OrderCommand {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let Self::Show { id, format } = self;
        let details = stores(config)?.ledger.orders.order_details(id).await?;
        let details = details.with_context(|| format!("there is no order {id}"))?;
        if format == Format::Json {
            return print::json(&details);
        }
        print::rows(std::iter::once(OrderLine::from(&details.order)), format)?;
        if format == Format::Csv {
            return Ok(());
        }
        let steps = details.changes.into_iter().map(|change| {
            let at = print::time(change.at.timestamp_millis());
            Row([("at", at.into()), ("from", change.from.into()), ("to", change.to.into())])
        });
        print::rows(steps, format)
    }
}
