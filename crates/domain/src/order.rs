//! An order's states. docs/protocol.md draws the legal steps, and the schema's triggers enforce them.

use serde::Serialize;
use strum::{Display, EnumString, IntoStaticStr, VariantArray};
use utoipa::ToSchema;

use super::currency::Currency;
use super::ids::{OrderId, SaleId};
use super::payment::{PaymentId, PaymentStatus};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(Display, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum OrderStatus {
    /// The purchase is committed; the order is not made yet.
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

    /// The statuses of rows in the table of orders.
    pub fn stored() -> impl Iterator<Item = Self> {
        Self::VARIANTS.iter().copied().filter(|status| *status != Self::Accepted)
    }

    pub const fn is_final(self) -> bool {
        matches!(self, Self::Cancelled | Self::Rejected | Self::Refunded)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum CancelReason {
    Expired,
    ByBuyer,
}

/// Why PostgreSQL refused an order for a hold in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Rejection {
    OutOfStock,
    OverLimit,
}

/// An ended order, whose hold ends in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldRelease {
    pub order: OrderId,
    /// Whether the units are for sale again.
    pub returns_units: bool,
    /// When the hold lapsed; `None` when the order ended otherwise.
    pub lapsed_at_ms: Option<i64>,
}

/// An order's payment: the one that paid it, or the last one.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct OrderPayment {
    pub payment_id: PaymentId,
    pub channel: String,
    pub status: PaymentStatus,
    /// Why it failed, as a code: `declined`, `failed`, or the channel's own, such as `insufficient-funds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "declined")]
    pub reason: Option<String>,
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
    pub currency: Currency,
    /// What was given back.
    #[schema(minimum = 0)]
    pub refunded_cents: i64,
    pub status: OrderStatus,
    /// Why it was cancelled (`expired`, `by-buyer`) or rejected (`out-of-stock`, `over-limit`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "expired")]
    pub reason: Option<String>,
    pub expires_at_ms: i64,
    pub created_at_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub payment: Option<OrderPayment>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn final_statuses_have_no_next_step_in_the_schema() {
        let schema = include_str!("../../../migrations/0003_orders.sql");
        let (_, steps) = schema.split_once("INSERT INTO order_status_steps").unwrap();
        let (steps, _) = steps.split_once(';').unwrap();
        for from in OrderStatus::VARIANTS {
            assert_eq!(from.is_final(), !steps.contains(&format!("('{from}', ")), "{from}");
        }
    }
}
