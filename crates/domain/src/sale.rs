//! A sale and its terms.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr};
use utoipa::ToSchema;

use super::captcha::CaptchaKind;
use super::currency::Currency;
use super::ids::{Invalid, SaleId, Units};
use super::picture::Picture;
use super::sale_blocks::SaleBlocks;
use super::shards::{SaleShards, ShardCount};
use super::stock::Stock;
use super::text;

/// The status that a manager has set. Whether the sale is open also depends on its window: see [`SalePhase`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Display, EnumString, IntoStaticStr, ToSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum SaleStatus {
    Open,
    Paused,
    Closed,
}

impl SaleStatus {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// How a sale stands at a moment, by its status and its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema, EnumString, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum SalePhase {
    Scheduled,
    Open,
    Paused,
    Ended,
}

impl SalePhase {
    pub fn at(now_ms: i64, status: SaleStatus, starts_at_ms: i64, ends_at_ms: i64) -> Self {
        match status {
            SaleStatus::Closed => Self::Ended,
            SaleStatus::Open | SaleStatus::Paused if now_ms >= ends_at_ms => Self::Ended,
            SaleStatus::Paused => Self::Paused,
            SaleStatus::Open if now_ms < starts_at_ms => Self::Scheduled,
            SaleStatus::Open => Self::Open,
        }
    }

    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A sale's terms and texts, without its stock, as instances keep it in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sale {
    pub id: SaleId,
    pub product_id: i64,
    pub product: String,
    pub description: String,
    pub picture: Option<Picture>,
    pub price_cents: i64,
    pub currency: Currency,
    pub per_user: Units,
    pub min_level: i64,
    pub captcha: CaptchaKind,
    /// All units ever put up for sale, with future waves.
    pub total_stock: Stock,
    /// Whether buyers see how far the sale is sold.
    pub show_stock: bool,
    #[serde(default)]
    pub shards: ShardCount,
    pub starts_at_ms: i64,
    pub ends_at_ms: i64,
    pub pay_within_ms: i64,
    pub status: SaleStatus,
    pub purchase_key: String,
    pub waiting_key: String,
    /// Rises with each change of the buyer's terms (protocol, rule 19).
    #[serde(default)]
    pub terms_version: i32,
    /// Parts of the stock that go on sale after the start, in order.
    pub waves: Vec<PlannedWave>,
    #[serde(default)]
    pub blocks: SaleBlocks,
}

/// A wave as buyers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedWave {
    /// Seconds after the sale's start.
    pub after_s: i64,
    pub units: u32,
}

impl Sale {
    pub fn sharding(&self) -> SaleShards {
        SaleShards { sale: self.id, count: self.shards, asks_pass: self.captcha != CaptchaKind::None }
    }

    /// The price in the currency's main unit, such as `99.00`.
    pub fn price(&self) -> String {
        self.currency.amount(self.price_cents)
    }

    /// Whether the sale's window is open, and the sale neither paused nor closed.
    pub fn is_open_at(&self, now_ms: i64) -> bool {
        self.status == SaleStatus::Open && (self.starts_at_ms..self.ends_at_ms).contains(&now_ms)
    }

    /// The purchase key while the sale is open, else a key that buys nothing.
    pub fn key_at(&self, now_ms: i64) -> &str {
        if self.is_open_at(now_ms) { &self.purchase_key } else { &self.waiting_key }
    }

    /// A short hash of the texts and terms on the sale's page. The start and the end are not in it: pages read them from `state.js`.
    pub fn terms(&self) -> String {
        let texts = (&self.product, &self.description, &self.picture, &self.waves);
        let numbers =
            (self.price_cents, self.currency, self.per_user, self.min_level, self.captcha, self.pay_within_ms);
        // Plain data always serializes.
        let shown = serde_json::to_vec(&(texts, numbers)).unwrap_or_default();
        blake3::hash(&shown).to_hex()[..16].to_owned()
    }

    pub fn phase_at(&self, now_ms: i64) -> SalePhase {
        SalePhase::at(now_ms, self.status, self.starts_at_ms, self.ends_at_ms)
    }

    /// How far the sale is sold, in whole per cent, rounded down: 100 only when no unit is left. `available`: the units for sale now. `None`
    /// if buyers do not see it.
    pub fn sold_percent(&self, available: i64, now_ms: i64) -> Option<u8> {
        let Stock::Units(total @ 1..) = self.total_stock else { return None };
        let is_to_come =
            |wave: &&PlannedWave| self.starts_at_ms.saturating_add(wave.after_s.saturating_mul(1000)) > now_ms;
        let to_come: u64 = self.waves.iter().filter(is_to_come).map(|wave| u64::from(wave.units)).sum();
        let sold = total.saturating_sub(to_come).saturating_sub(available.max(0).unsigned_abs());
        self.show_stock.then(|| u8::try_from(sold * 100 / total).unwrap_or(100))
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Product {
    pub id: i64,
    pub name: String,
    pub description: String,
    pub picture: Option<Picture>,
}

/// A change of a product, or a new one. A field of `None` stays as it is.
#[derive(Debug, Clone)]
pub struct ProductChange {
    pub name: String,
    pub description: Option<String>,
    /// The hash of a picture.
    pub picture: Option<String>,
    /// A description of the picture, for people who cannot see it.
    pub alt: Option<String>,
}

impl ProductChange {
    /// The change with its texts in their stored form. The schema's constraints enforce the same lengths.
    pub fn check(self) -> Result<Self, Invalid> {
        Ok(Self {
            name: product_name(&self.name, "name")?,
            description: self
                .description
                .map(|description| text::lines(&description, "description", 0..=5000))
                .transpose()?,
            alt: self.alt.map(|alt| text::line(&alt, "alt", 0..=300)).transpose()?,
            picture: self.picture,
        })
    }
}

/// A change of a product that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProductEdit {
    Rename(String),
    RemovePicture,
    /// Only without sales.
    Remove,
}

pub fn product_name(name: &str, field: &'static str) -> Result<String, Invalid> {
    text::line(name, field, 1..=200)
}

/// A document that many callers read. Instances and Redis keep copies.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Document {
    Sale(Sale),
    Product(Product),
}

/// The terms of a sale, as a manager sets them.
#[derive(Debug, Clone)]
pub struct NewSale {
    pub product: String,
    pub price_cents: i64,
    pub currency: Currency,
    pub stock: Stock,
    pub per_user: Units,
    pub starts_in_ms: i64,
    pub ends_in_ms: i64,
    pub pay_within_ms: i64,
    /// Whether the units of a refunded order are for sale again.
    pub refund_returns_stock: bool,
    /// Whether buyers see how far the sale is sold.
    pub show_stock: bool,
    pub min_level: i64,
    pub captcha: CaptchaKind,
    pub shards: ShardCount,
    pub waves: Vec<Wave>,
}

/// Units that go on sale some time after the start (protocol, rule 14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wave {
    pub after_ms: i64,
    pub units: u32,
}

impl Wave {
    /// Reads seconds, a colon, units.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let invalid = || Invalid::new("wave", "must be seconds after the start, a colon, and 1 to 2147483647 units");
        let (seconds, units) = text.split_once(':').ok_or_else(invalid)?;
        let (seconds, units): (u32, u32) = seconds.parse().ok().zip(units.parse().ok()).ok_or_else(invalid)?;
        if !(1..=i32::MAX as u32).contains(&units) {
            return Err(invalid());
        }
        Ok(Self { after_ms: i64::from(seconds) * 1000, units })
    }
}

impl NewSale {
    const DAY_MS: i64 = 86_400_000;
    /// How long a sale lasts by default.
    pub const LASTS_MS: i64 = 3_600_000;

    /// A sale that starts now, with the defaults for all else.
    pub fn of_defaults(product: String, price_cents: i64, currency: Currency, stock: Stock) -> Self {
        Self {
            product,
            price_cents,
            currency,
            stock,
            per_user: Units::ONE,
            starts_in_ms: 0,
            ends_in_ms: Self::LASTS_MS,
            pay_within_ms: 900_000,
            refund_returns_stock: true,
            show_stock: false,
            min_level: 0,
            captcha: CaptchaKind::None,
            shards: ShardCount::ONE,
            waves: Vec::new(),
        }
    }

    /// Units that are not for sale from the start.
    pub fn held_back(&self) -> u64 {
        self.waves.iter().map(|wave| u64::from(wave.units)).sum()
    }

    /// The schema's constraints enforce the same bounds.
    pub fn check(mut self) -> Result<Self, Invalid> {
        self.product = product_name(&self.product, "product")?;
        if !(0..=100_000_000_000).contains(&self.price_cents) {
            return Err(Invalid::new("price-cents", "must be 0 to 100000000000"));
        }
        if self.per_user.get() > 10_000 {
            return Err(Invalid::new("per-user", "must be 1 to 10000"));
        }
        if !(0..=i64::from(i32::MAX)).contains(&self.min_level) {
            return Err(Invalid::new("min-level", "must be 0 to 2147483647"));
        }
        let window = -3650 * Self::DAY_MS..=3650 * Self::DAY_MS;
        if !window.contains(&self.starts_in_ms) || !window.contains(&self.ends_in_ms) {
            return Err(Invalid::new("starts-in", "and ends-in must be within ten years of now"));
        }
        if self.ends_in_ms <= self.starts_in_ms {
            return Err(Invalid::new("ends-in", "must be later than starts-in"));
        }
        match self.stock {
            Stock::Unlimited if !self.waves.is_empty() => {
                return Err(Invalid::new("wave", "must be left out when the stock is unlimited"));
            }
            Stock::Units(n) if self.held_back() > n => {
                return Err(Invalid::new("wave", "units must not add up to more than the stock"));
            }
            _ => {}
        }
        if !(1000..=30 * Self::DAY_MS).contains(&self.pay_within_ms) {
            return Err(Invalid::new("pay-within", "must be 1 second to 30 days"));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sale() -> Sale {
        Sale {
            id: SaleId::from_db(1),
            product_id: 1,
            product: "Phone".into(),
            description: String::new(),
            picture: None,
            price_cents: 100,
            currency: "CNY".parse().unwrap(),
            per_user: Units::ONE,
            min_level: 0,
            captcha: CaptchaKind::None,
            total_stock: Stock::Units(10),
            show_stock: false,
            shards: ShardCount::ONE,
            starts_at_ms: 1000,
            ends_at_ms: 2000,
            pay_within_ms: 1000,
            status: SaleStatus::Open,
            purchase_key: "real".into(),
            waiting_key: "waiting".into(),
            terms_version: 0,
            blocks: SaleBlocks::default(),
            waves: Vec::new(),
        }
    }

    #[test]
    fn the_purchase_key_is_given_only_while_the_sale_is_open() {
        let sale = sale();
        assert_eq!([999, 1000, 1999, 2000].map(|now| sale.key_at(now)), ["waiting", "real", "real", "waiting"]);
        let paused = Sale { status: SaleStatus::Paused, ..sale };
        assert_eq!(paused.key_at(1500), "waiting");
    }

    #[test]
    fn only_a_shown_sale_without_a_unit_left_is_sold_to_a_hundred_per_cent() {
        let waves = vec![PlannedWave { after_s: 0, units: 20 }, PlannedWave { after_s: 60, units: 30 }];
        let sale = Sale { show_stock: true, total_stock: Stock::Units(300), waves, ..sale() };
        // Units for sale, the time, and what is shown.
        for (available, now_ms, percent) in [
            (250, 0, 0),
            (270, 1_000, 0),
            (268, 1_000, 0),
            (267, 1_000, 1),
            (0, 1_000, 90),
            (30, 61_000, 90),
            (1, 61_000, 99),
            (0, 61_000, 100),
            // A wave that is due is not in Redis yet; added units are not in the catalogue yet.
            (0, 999, 83),
            (400, 61_000, 0),
        ] {
            assert_eq!(sale.sold_percent(available, now_ms), Some(percent), "{available} {now_ms}");
        }
        let without_end = Sale { total_stock: Stock::Unlimited, ..sale.clone() };
        let nothing = Sale { total_stock: Stock::Units(0), ..sale.clone() };
        for hidden in [Sale { show_stock: false, ..sale }, without_end, nothing] {
            assert_eq!(hidden.sold_percent(0, 61_000), None);
        }
    }

    #[test]
    fn the_terms_change_with_all_that_a_page_shows_apart_from_times() {
        let picture = |alt: &str| {
            let size = crate::picture::Size { width: 4, height: 3 };
            Some(Picture { hash: "0a".repeat(16), alt: alt.into(), small: size, large: size })
        };
        let two = Units::parse(2).unwrap();
        let changed = [
            Sale { product: "Phone 2".into(), ..sale() },
            Sale { description: "Rings.".into(), ..sale() },
            Sale { picture: picture("A phone"), ..sale() },
            Sale { picture: picture("A red phone"), ..sale() },
            Sale { price_cents: 101, ..sale() },
            Sale { currency: "EUR".parse().unwrap(), ..sale() },
            Sale { per_user: two, ..sale() },
            Sale { min_level: 1, ..sale() },
            Sale { captcha: CaptchaKind::Work, ..sale() },
            Sale { pay_within_ms: 1001, ..sale() },
            Sale { waves: vec![PlannedWave { after_s: 1, units: 1 }], ..sale() },
            sale(),
        ];
        let terms: std::collections::HashSet<_> = changed.iter().map(Sale::terms).collect();
        assert_eq!(terms.len(), changed.len());
        let (starts_at_ms, ends_at_ms, status) = (5000, 6000, SaleStatus::Paused);
        assert_eq!(Sale { starts_at_ms, ends_at_ms, status, ..sale() }.terms(), sale().terms());
    }

    #[test]
    fn a_wave_is_seconds_and_units() {
        assert_eq!(Wave::parse("5:100"), Ok(Wave { after_ms: 5_000, units: 100 }));
        for bad in ["", "5", "5:", ":5", "-1:5", "5:0", "5:-1", "5:1.5", "5:2147483648", "5:5:5"] {
            assert!(Wave::parse(bad).is_err(), "{bad}");
        }
    }
}
