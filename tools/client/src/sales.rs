//! Sales: products, terms, and whether they are open.

use serde::Deserialize;

use crate::buyer::BuyerClient;
use crate::error::Error;

/// A sale. Times are in milliseconds since the epoch, by the service's clock; money is in the currency's smallest units.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Sale {
    pub id: i64,
    pub product: Product,
    pub price_cents: i64,
    /// ISO 4217.
    pub currency: String,
    pub starts_at_ms: i64,
    pub ends_at_ms: i64,
    pub status: SalePhase,
    pub per_user: u32,
    pub min_level: i64,
    pub captcha: Captcha,
    /// Whether no unit is left at the moment. Units that come back are sold again.
    pub sold_out: bool,
    /// Parts of the stock that go on sale later; empty for most sales, and from services that do not send them.
    #[serde(default)]
    pub waves: Vec<Wave>,
}

/// A product.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Product {
    pub id: i64,
    pub name: String,
}

/// A part of a sale's stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Wave {
    /// Seconds after the start.
    pub after_s: i64,
    pub units: i64,
}

/// The phase of a sale; `Unknown` in this version of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SalePhase {
    Scheduled,
    /// It sells, if there is stock.
    Open,
    Paused,
    Ended,
    #[serde(other)]
    Unknown,
}

/// The challenge before a purchase, for [`BuyerClient::challenge`]; `Unknown` in this version of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Captcha {
    None,
    Image,
    Slider,
    Work,
    #[serde(other)]
    Unknown,
}

/// Whether a sale is open, and the key that a purchase needs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct SaleState {
    pub open: bool,
    /// The purchase key while the sale is open; otherwise a key that buys nothing.
    pub key: String,
    /// The service's time, in milliseconds since the epoch. Count down by it, not by your own clock.
    pub now_ms: i64,
    pub starts_at_ms: i64,
    pub ends_at_ms: i64,
    pub sold_out: bool,
    pub status: SalePhase,
}

#[derive(Deserialize)]
struct Now {
    now_ms: i64,
}

#[derive(Deserialize)]
struct Channels {
    channels: Vec<String>,
}

impl BuyerClient {
    /// The newest sales, at most 100, the newest first.
    ///
    /// # Errors
    /// No answer, or [`Error::Problem`].
    pub async fn sales(&self) -> Result<Vec<Sale>, Error> {
        self.get("/api/v1/sales").await
    }

    /// A sale.
    ///
    /// # Errors
    /// [`Error::Problem`] with [`crate::Code::UnknownSale`] and others; or no answer.
    pub async fn sale(&self, id: i64) -> Result<Sale, Error> {
        self.get(&format!("/api/v1/sales/{id}")).await
    }

    /// Whether a sale is open, and its purchase key.
    ///
    /// # Errors
    /// [`Error::Problem`] with [`crate::Code::UnknownSale`] and others; or no answer.
    pub async fn state(&self, sale_id: i64) -> Result<SaleState, Error> {
        self.get(&format!("/api/v1/sales/{sale_id}/state")).await
    }

    /// The service's time, in milliseconds since the epoch.
    ///
    /// # Errors
    /// No answer, or [`Error::Problem`].
    pub async fn now_ms(&self) -> Result<i64, Error> {
        Ok(self.get::<Now>("/api/v1/time").await?.now_ms)
    }

    /// The names of the payment channels that [`BuyerClient::pay`] takes.
    ///
    /// # Errors
    /// No answer, or [`Error::Problem`].
    pub async fn payment_channels(&self) -> Result<Vec<String>, Error> {
        Ok(self.get::<Channels>("/api/v1/payments/channels").await?.channels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A newer service may send more fields, phases and challenges; an older one sends no waves.
    #[test]
    fn a_sale_of_another_version_is_read() {
        let sale = r#"{"id":7,"product":{"id":1,"name":"Phone","picture":null},"price_cents":100,"currency":"CNY","starts_at_ms":1,
            "ends_at_ms":2,"status":"lottery","per_user":1,"min_level":0,"captcha":"riddle","sold_out":false}"#;
        let sale: Sale = serde_json::from_str(sale).unwrap();
        assert_eq!((sale.status, sale.captcha, sale.waves.len()), (SalePhase::Unknown, Captcha::Unknown, 0));
        let wave: Wave = serde_json::from_str(r#"{"after_s":60,"units":5}"#).unwrap();
        assert_eq!(wave, Wave { after_s: 60, units: 5 });
    }
}
