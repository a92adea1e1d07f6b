//! A buyer's own orders: to read, to pay, to cancel.

use reqwest::Method;
use reqwest::header::{HeaderMap, LINK};
use serde::Deserialize;
use serde_json::json;
use strum::Display;
use uuid::Uuid;

use crate::buyer::BuyerClient;
use crate::error::Error;
use crate::service::{call, exchange};

/// An order. Times are in milliseconds since the epoch; money is in the currency's smallest units.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Order {
    pub order_id: Uuid,
    pub sale_id: i64,
    pub quantity: u32,
    pub amount_cents: i64,
    /// ISO 4217.
    pub currency: String,
    /// What was given back.
    pub refunded_cents: i64,
    pub status: OrderStatus,
    /// Why it was cancelled (`expired`, `by-buyer`) or rejected (`out-of-stock`, `over-limit`).
    pub reason: Option<String>,
    /// Until when it has to be paid.
    pub expires_at_ms: i64,
    pub created_at_ms: i64,
    /// The payment that paid it, or the last one.
    pub payment: Option<OrderPayment>,
}

/// An order's payment.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct OrderPayment {
    pub payment_id: Uuid,
    pub channel: String,
    /// `created`, `sending`, `waiting`, `succeeded`, `failed` or `abandoned`.
    pub status: String,
    /// Why it failed, as a code: `declined`, `failed`, or the channel's own, such as `insufficient-funds`.
    pub reason: Option<String>,
}

/// The status of an order. docs/protocol.md draws the transitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum OrderStatus {
    /// The purchase is durable; the order is being written.
    Accepted,
    PendingPayment,
    Paid,
    Refunding,
    Refunded,
    /// It was not paid in time, or its buyer cancelled it. Final.
    Cancelled,
    /// The stock did not suffice, or the buyer was over the limit. Final.
    Rejected,
    #[serde(other)]
    Unknown,
}

impl OrderStatus {
    /// Whether the status is final.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Cancelled | Self::Rejected | Self::Refunded)
    }

    /// The position in the order's life: it never decreases. `None` if unknown.
    pub(crate) fn progress(self) -> Option<u8> {
        match self {
            Self::Accepted => Some(0),
            Self::PendingPayment => Some(1),
            Self::Paid => Some(2),
            Self::Refunding => Some(3),
            Self::Refunded | Self::Cancelled | Self::Rejected => Some(4),
            Self::Unknown => None,
        }
    }
}

/// A page of a buyer's orders, the newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderPage {
    pub orders: Vec<Order>,
    /// The `after` for [`BuyerClient::orders`] to get the next page; `None` on the last one.
    pub next: Option<Uuid>,
}

/// A payment in flight. The order's status shows its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PaymentBegun {
    pub payment_id: Uuid,
    /// `created`, `sending`, `waiting`, `succeeded`, `failed` or `abandoned`.
    pub status: String,
}

/// A refund in flight. The order's status shows when the money is back.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RefundBegun {
    pub refund_id: Uuid,
    /// `requested`, `succeeded` or `failed`.
    pub status: String,
}

impl BuyerClient {
    /// An order.
    ///
    /// # Errors
    /// [`Error::Problem`] with [`crate::Code::UnknownOrder`] (also for another buyer's), [`crate::Code::QuotaExceeded`] after too
    /// many reads, and others; or no answer.
    pub async fn order(&self, order_id: Uuid) -> Result<Order, Error> {
        self.get(&format!("/api/v1/orders/{order_id}")).await
    }

    /// A page of the buyer's orders, of one sale or of all, after `after`; without it the first page.
    ///
    /// # Errors
    /// As [`BuyerClient::order`].
    pub async fn orders(&self, sale_id: Option<i64>, after: Option<Uuid>) -> Result<OrderPage, Error> {
        let mut path = "/api/v1/orders".to_owned();
        let sale = sale_id.map(|id| format!("sale_id={id}"));
        let after = after.map(|id| format!("after={id}"));
        for (parameter, mark) in sale.into_iter().chain(after).zip(["?", "&"]) {
            path = path + mark + &parameter;
        }
        let request = self.service.request(Method::GET, &path, self.bearer.as_ref());
        let answer = exchange(request, self.service.timeout()).await?;
        let orders: Vec<Order> = answer.read()?;
        let next = orders.last().map(|order| order.order_id).filter(|_| has_next_page(&answer.headers));
        Ok(OrderPage { orders, next })
    }

    /// Cancels an order that is not yet paid, and returns it.
    ///
    /// # Errors
    /// [`Error::Problem`] with [`crate::Code::OrderNotReady`] while it is `accepted`, [`crate::Code::IllegalState`] once it is
    /// paid or has ended, and others; or no answer: read the order to learn whether it is cancelled.
    pub async fn cancel(&self, order_id: Uuid) -> Result<Order, Error> {
        let request =
            self.service.request(Method::POST, &format!("/api/v1/orders/{order_id}/cancel"), self.bearer.as_ref());
        call(request, self.service.timeout()).await
    }

    /// Begins a payment over a channel, one of [`BuyerClient::payment_channels`]. While it is in flight, another call returns the same
    /// payment. [`BuyerClient::follow`] shows when the order is paid.
    ///
    /// # Errors
    /// [`Error::Problem`] with [`crate::Code::OrderNotReady`] while the order is `accepted`, [`crate::Code::IllegalState`] if
    /// it no longer waits for a payment, 400 for an unknown channel, and others; or no answer: ask again.
    pub async fn pay(&self, order_id: Uuid, channel: &str) -> Result<PaymentBegun, Error> {
        self.post(&format!("/api/v1/orders/{order_id}/payments"), &json!({ "channel": channel })).await
    }

    /// Requests a refund of a paid order. `reason` is one line of at most 500 characters. Another call returns the same refund.
    ///
    /// # Errors
    /// [`Error::Problem`] with [`crate::Code::IllegalState`] if the order is not paid, and others; or no answer: ask again.
    pub async fn refund(&self, order_id: Uuid, reason: &str) -> Result<RefundBegun, Error> {
        self.post(&format!("/api/v1/orders/{order_id}/refunds"), &json!({ "reason": reason })).await
    }
}

/// Whether the header `Link` names a next page.
fn has_next_page(headers: &HeaderMap) -> bool {
    headers.get_all(LINK).iter().any(|link| link.to_str().is_ok_and(|link| link.contains("rel=\"next\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_and_written_alike() {
        for text in ["accepted", "pending_payment", "paid", "refunding", "refunded", "cancelled", "rejected"] {
            let status: OrderStatus = serde_json::from_value(text.into()).unwrap();
            assert_eq!(status.to_string(), text);
            assert_ne!(status, OrderStatus::Unknown);
            assert_eq!(status.is_final(), status.progress() == Some(4), "{text}");
        }
        let new: OrderStatus = serde_json::from_value("shipped".into()).unwrap();
        assert_eq!(new, OrderStatus::Unknown);
    }
}
