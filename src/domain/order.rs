//! An order's states and its legal steps; docs/order-states.md draws them, the schema's trigger holds them.

use std::fmt;

use serde::Serialize;
use utoipa::ToSchema;

use super::ids::{OrderId, SaleId};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OrderStatus {
    /// Durable as a purchase row; not yet an order.
    Accepted,
    PendingPayment,
    Paid,
    Refunding,
    Refunded,
    Cancelled,
    Rejected,
}

impl OrderStatus {
    pub const ALL: [Self; 7] = [
        Self::Accepted,
        Self::PendingPayment,
        Self::Paid,
        Self::Refunding,
        Self::Refunded,
        Self::Cancelled,
        Self::Rejected,
    ];

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.as_str() == text)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::PendingPayment => "pending_payment",
            Self::Paid => "paid",
            Self::Refunding => "refunding",
            Self::Refunded => "refunded",
            Self::Cancelled => "cancelled",
            Self::Rejected => "rejected",
        }
    }

    /// Whether an order of this status still has its units.
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

impl fmt::Display for OrderStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why an order was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    Expired,
    ByBuyer,
}

impl CancelReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::ByBuyer => "by-buyer",
        }
    }
}

/// Why the database refused what Redis had promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    OutOfStock,
    OverLimit,
}

impl Rejection {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OutOfStock => "out-of-stock",
            Self::OverLimit => "over-limit",
        }
    }
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
    fn the_schema_knows_the_same_steps() {
        let migration = include_str!("../../migrations/0002_orders.sql");
        for from in OrderStatus::ALL {
            for to in OrderStatus::ALL {
                let row = format!("('{from}', '{to}')");
                assert_eq!(migration.contains(&row), from.may_become(to), "{row}");
            }
            let ends = OrderStatus::ALL.into_iter().all(|to| !from.may_become(to));
            assert_eq!(from.is_final(), ends, "{from}");
        }
    }
}
