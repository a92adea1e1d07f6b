//! `orders`: shows orders.

use super::arguments::{Format, SaleOption, user};
use super::print;
use crate::app::stores;
use seckill_backoffice::admin::order_lines::OrderLine;
use seckill_config::Config;
use seckill_domain::ids::UserId;
use seckill_domain::order::OrderStatus;
use seckill_postgres::orders::read::OrderSearch;

#[derive(clap::Args)]
pub(super) struct OrdersArgs {
    #[command(flatten)]
    sale: SaleOption,
    /// Only orders with this status
    #[arg(long, value_parser = |text: &str| text.parse::<OrderStatus>().map_err(|_| "unknown order status"))]
    status: Option<OrderStatus>,
    /// Only this buyer's orders
    #[arg(long, value_parser = user)]
    user: Option<UserId>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Show at most this many orders
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(i64).range(1..=10_000_000))]
    limit: i64,
}

impl OrdersArgs {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let Self { sale, status, user, format, limit } = self;
        let search = OrderSearch { sale: sale.sale, user, status, before: None, limit };
        let orders = stores(config)?.ledger.orders.orders(&search).await?;
        print::rows(orders.iter().map(OrderLine::from), format)
    }
}
