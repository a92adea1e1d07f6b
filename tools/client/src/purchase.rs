//! Purchases: repeated under one Idempotency-Key until there is a definite answer.

use std::time::Instant;

use reqwest::Method;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use uuid::Uuid;

use crate::buyer::BuyerClient;
use crate::error::Error;
use crate::orders::OrderStatus;
use crate::retry::{Attempts, Next};
use crate::service::call;

/// The longest Idempotency-Key.
const IDEMPOTENCY_KEY_MAX: usize = 200;

/// A purchase to make, under its own Idempotency-Key.
///
/// Sent twice, it is still one purchase. Keep it, or its key, until its result is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purchase {
    sale_id: i64,
    key: String,
    quantity: Option<u32>,
    pass: Option<String>,
    idempotency_key: String,
}

impl Purchase {
    /// One unit of a sale, under a new random Idempotency-Key. `key` is the sale's purchase key: [`crate::SaleState::key`].
    pub fn new(sale_id: i64, key: impl Into<String>) -> Self {
        let idempotency_key = Uuid::new_v4().to_string();
        Self { sale_id, key: key.into(), quantity: None, pass: None, idempotency_key }
    }

    /// Buys this many units.
    #[must_use]
    pub fn quantity(mut self, units: u32) -> Self {
        self.quantity = Some(units);
        self
    }

    /// Adds a pass, if the sale requires one: [`crate::Pass::pass`].
    #[must_use]
    pub fn pass(mut self, pass: impl Into<String>) -> Self {
        self.pass = Some(pass.into());
        self
    }

    /// Uses this Idempotency-Key, for example a key that was stored before a restart: 1 to 200 visible ASCII characters.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the key is not valid.
    pub fn under(mut self, idempotency_key: impl Into<String>) -> Result<Self, Error> {
        let key = idempotency_key.into();
        if !(1..=IDEMPOTENCY_KEY_MAX).contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::invalid("the Idempotency-Key", "must be 1 to 200 visible ASCII characters"));
        }
        self.idempotency_key = key;
        Ok(self)
    }

    /// The Idempotency-Key.
    pub fn idempotency_key(&self) -> &str {
        &self.idempotency_key
    }
}

/// A durable purchase: it ends in exactly one final status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Ticket {
    /// The order. [`BuyerClient::follow`] follows it.
    pub order_id: Uuid,
    /// The status: `accepted` until the order is written. For an earlier purchase, the present status.
    pub status: OrderStatus,
    /// Until when it has to be paid, in milliseconds since the epoch; a lower bound while it is `accepted`.
    pub expires_at_ms: i64,
}

#[derive(Serialize)]
struct PurchaseRequest<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    quantity: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pass: Option<&'a str>,
}

impl BuyerClient {
    /// Buys. Retries within [`crate::RetryTerms`] until there is a definite answer, and respects `Retry-After`.
    ///
    /// If the future is dropped, the result is unknown: call this again with the same [`Purchase`].
    ///
    /// # Errors
    /// [`Error::Problem`], [`Error::Connect`], [`Error::Invalid`]: nothing was bought under this Idempotency-Key.
    /// [`Error::Undecided`]: the result is unknown; call again later with the same [`Purchase`].
    pub async fn purchase(&self, purchase: &Purchase) -> Result<Ticket, Error> {
        let mut attempts = Attempts::new(self.retry, Instant::now());
        loop {
            let error = match self.try_purchase(purchase).await {
                Ok(ticket) => return Ok(ticket),
                Err(error) => error,
            };
            match attempts.failed(&error, Instant::now(), rand::random()) {
                Next::Pause(pause) => {
                    tracing::debug!(%error, ?pause, attempts = attempts.made, "the purchase is tried again");
                    sleep(pause).await;
                }
                Next::Definite => return Err(error),
                Next::Undecided => return Err(Error::Undecided { attempts: attempts.made, last: Box::new(error) }),
            }
        }
    }

    async fn try_purchase(&self, purchase: &Purchase) -> Result<Ticket, Error> {
        let Purchase { sale_id, key, quantity, pass, idempotency_key } = purchase;
        let body = PurchaseRequest { key, quantity: *quantity, pass: pass.as_deref() };
        let path = format!("/api/v1/sales/{sale_id}/purchases");
        let request = self.service.request(Method::POST, &path, self.bearer.as_ref());
        call(request.header("idempotency-key", idempotency_key).json(&body), self.service.timeout()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_purchase_has_a_key_of_its_own_unless_it_is_given_one() {
        let (one, other) = (Purchase::new(1, "k"), Purchase::new(1, "k"));
        assert_ne!(one.idempotency_key(), other.idempotency_key());
        assert_eq!(one.clone().under("stored").unwrap().idempotency_key(), "stored");
        for key in ["", "two words", "line\n", &"x".repeat(201)] {
            assert!(one.clone().under(key).is_err(), "{key:?}");
        }
    }
}
