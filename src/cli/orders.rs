//! `orders`: shows orders.

use super::arguments::{ListArgs, SaleOption, user};
use super::print;
use crate::app::stores;
use seckill_backoffice::admin::order_lines::OrderLine;
use seckill_config::Config;
use seckill_domain::ids::UserId;
use seckill_domain::order::OrderStatus;
use seckill_postgres::orders::listed::ListedOrder;
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
    #[command(flatten)]
    list: ListArgs,
}

impl OrdersArgs {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let Self { sale, status, user, list } = self;
        let sales = sale.sale.map(|sale| vec![sale]);
        let search = OrderSearch { sales, user, status, limit: list.read_max(), ..OrderSearch::default() };
        // One snapshot, so that an order that changes meanwhile comes once.
        let mut export = stores(config)?.ledger.orders.export_orders(search).await?;
        let next = async |_, _| match &mut export {
            Some(export) => export.next_piece().await,
            None => Ok(Vec::new()),
        };
        print::pages(&list, next, |order: ListedOrder| OrderLine::from(&order)).await
    }
}
