//! What has become of a sale's units, and what they have brought.

use serde::Serialize;
use utoipa::ToSchema;

use super::live::OrderFigures;
use super::order::OrderStatus;

/// What a sale has sold, as PostgreSQL counted it last.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct SaleResult {
    pub counted_at_ms: i64,
    /// Units that have a buyer: those that wait for payment and the paid ones.
    pub sold_units: i64,
    /// Units that are reserved and not paid.
    pub waiting_units: i64,
    /// Units that are paid and not refunded. A refund that is under way still counts as paid.
    pub paid_units: i64,
    pub refunded_units: i64,
    /// What was paid, less what was refunded, in the minor units of the sale's currency.
    pub revenue_cents: i64,
    /// Of all orders that had units reserved, the share that was paid, later refunded ones included: 0 to 1. Null without such orders.
    pub conversion: Option<f64>,
}

impl SaleResult {
    pub fn of(orders: &[OrderFigures], counted_at_ms: i64) -> Self {
        let sum = |statuses: &[OrderStatus], what: fn(&OrderFigures) -> i64| -> i64 {
            orders.iter().filter(|of| statuses.contains(&of.status)).map(what).sum()
        };
        let (waiting, paid) =
            (&[OrderStatus::Accepted, OrderStatus::PendingPayment], &[OrderStatus::Paid, OrderStatus::Refunding]);
        let (waiting_units, paid_units) = (sum(waiting, |of| of.units), sum(paid, |of| of.units));
        // A rejected purchase had no unit.
        let reserved: i64 = orders.iter().filter(|of| of.status != OrderStatus::Rejected).map(|of| of.orders).sum();
        let ever_paid = sum(paid, |of| of.orders) + sum(&[OrderStatus::Refunded], |of| of.orders);
        Self {
            counted_at_ms,
            sold_units: waiting_units + paid_units,
            waiting_units,
            paid_units,
            refunded_units: sum(&[OrderStatus::Refunded], |of| of.units),
            revenue_cents: sum(paid, |of| of.amount_cents),
            conversion: (reserved > 0).then(|| (ever_paid as f64 / reserved as f64 * 10_000.0).round() / 10_000.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_order_counts_where_its_status_says() {
        let of = |status, orders, units| OrderFigures { status, orders, units, amount_cents: units * 100 };
        let all = [
            of(OrderStatus::Accepted, 1, 2),
            of(OrderStatus::PendingPayment, 3, 4),
            of(OrderStatus::Paid, 5, 6),
            of(OrderStatus::Refunding, 7, 8),
            of(OrderStatus::Refunded, 9, 10),
            of(OrderStatus::Cancelled, 11, 12),
            of(OrderStatus::Rejected, 13, 14),
        ];
        // Sold, waiting, paid, refunded, revenue, conversion of each prefix of the statuses.
        for (n, [sold, waiting, paid, refunded, revenue], conversion) in [
            (0, [0, 0, 0, 0, 0], None),
            (1, [2, 2, 0, 0, 0], Some(0.0)),
            (2, [6, 6, 0, 0, 0], Some(0.0)),
            (3, [12, 6, 6, 0, 600], Some(0.5556)),
            (4, [20, 6, 14, 0, 1400], Some(0.75)),
            (5, [20, 6, 14, 10, 1400], Some(0.84)),
            (6, [20, 6, 14, 10, 1400], Some(0.5833)),
            (7, [20, 6, 14, 10, 1400], Some(0.5833)),
        ] {
            let result = SaleResult::of(&all[..n], 7);
            let units = [result.sold_units, result.waiting_units, result.paid_units, result.refunded_units];
            assert_eq!((units, result.revenue_cents), ([sold, waiting, paid, refunded], revenue), "{n}");
            assert_eq!(result.conversion, conversion, "{n}");
        }
        assert_eq!(SaleResult::of(&all[6..], 7).conversion, None, "rejected purchases reserved nothing");
    }
}
