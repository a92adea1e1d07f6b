//! An order's states and its legal steps. docs/protocol.md draws them, and triggers of the schema enforce them.

use serde::Serialize;
use strum::{Display, EnumString, IntoStaticStr, VariantArray};
use utoipa::ToSchema;

use super::ids::{OrderId, SaleId};

/// How an order stands.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ToSchema, Display, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum OrderStatus {
    /// A record of the purchase is committed; the order is not made yet.
    Accepted,
    PendingPayment,
    Paid,
    Refunding,
    Refunded,
    Cancelled,
    Rejected,
}

impl OrderStatus {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The statuses that an order in the table can have: all but that of a purchase without an order.
    pub fn stored() -> impl Iterator<Item = Self> {
        Self::VARIANTS.iter().copied().filter(|status| *status != Self::Accepted)
    }

    /// Whether an order of this status holds its units.
    pub const fn holds_units(self) -> bool {
        matches!(self, Self::Accepted | Self::PendingPayment | Self::Paid | Self::Refunding)
    }

    /// Whether nothing comes after this status.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Cancelled | Self::Rejected | Self::Refunded)
    }

    /// Whether an order may go from this status to that one in a single step.
    pub const fn may_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Accepted, Self::PendingPayment | Self::Rejected)
                | (Self::PendingPayment, Self::Paid | Self::Cancelled)
                | (Self::Paid, Self::Refunding)
                | (Self::Refunding, Self::Refunded)
        )
    }
}

/// Why an order was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum CancelReason {
    Expired,
    ByBuyer,
}

/// Why PostgreSQL refused an order for a hold that Redis had given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Rejection {
    OutOfStock,
    OverLimit,
}

/// An ended order whose hold Redis is to release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldRelease {
    pub order: OrderId,
    /// Whether its units are for sale again.
    pub returns_units: bool,
    /// When the hold lapsed; `None` when the order ended otherwise.
    pub lapsed_at_ms: Option<i64>,
}

/// An order as its buyer sees it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Order {
    pub order_id: OrderId,
    pub sale_id: SaleId,
    #[schema(minimum = 1)]
    pub quantity: i32,
    #[schema(minimum = 0)]
    pub amount_cents: i64,
    pub status: OrderStatus,
    /// Why it was cancelled (`expired`, `by-buyer`) or rejected (`out-of-stock`, `over-limit`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "expired")]
    pub reason: Option<String>,
    pub expires_at_ms: i64,
    pub created_at_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_allows_the_same_steps() {
        let schema = include_str!("../../migrations/0003_orders.sql");
        let (_, steps) = schema.split_once("INSERT INTO order_status_steps").unwrap();
        let (steps, _) = steps.split_once(';').unwrap();
        for from in OrderStatus::VARIANTS {
            for to in OrderStatus::VARIANTS {
                let row = format!("('{from}', '{to}')");
                assert_eq!(steps.contains(&row), from.may_become(*to), "{row}");
            }
            let ends = OrderStatus::VARIANTS.iter().all(|to| !from.may_become(*to));
            assert_eq!(from.is_final(), ends, "{from}");
        }
    }
}
