//! `orders`: shows orders.

use serde::Serialize;

use super::arguments::{Format, SaleOption, user};
use super::print;
use crate::app::stores;
use crate::config::Config;
use crate::domain::ids::UserId;
use crate::domain::order::OrderStatus;
use crate::ledger::orders::read::{OrderFilter, OwnedOrder};

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
        let filter = OrderFilter {
            sale: self.sale.sale,
            status: self.status,
            user: self.user.map(|user| user.as_str().to_owned()),
            after: None,
            limit: self.limit,
        };
        let orders = stores(config)?.ledger.orders(&filter).await?;
        print::rows(orders.iter().map(OrderLine::from), self.format)
    }
}

#[derive(Serialize)]
struct OrderLine {
    order_id: String,
    sale_id: i64,
    user: String,
    quantity: i32,
    amount_cents: i64,
    status: &'static str,
    reason: String,
    created_at: String,
    expires_at: String,
}

impl From<&OwnedOrder> for OrderLine {
    fn from(owned: &OwnedOrder) -> Self {
        let order = &owned.order;
        Self {
            order_id: order.order_id.to_string(),
            sale_id: order.sale_id.get(),
            user: owned.user_id.clone(),
            quantity: order.quantity,
            amount_cents: order.amount_cents,
            status: order.status.as_str(),
            reason: order.reason.clone().unwrap_or_default(),
            created_at: print::time(order.created_at_ms),
            expires_at: print::time(order.expires_at_ms),
        }
    }
}
