//! Sales and pictures as the templates show them.

use chrono::{DateTime, SecondsFormat, Utc};

use crate::domain::picture::Picture;
use crate::domain::sale::{PlannedWave, Sale};

/// Characters of a description that search engines and shared links show.
const SUMMARY_MAX: usize = 160;

/// A sale as the templates show it.
#[derive(Clone)]
#[allow(dead_code)] // a template may leave some out
pub(super) struct SaleView {
    pub id: i64,
    pub product: String,
    pub description: String,
    /// The description in one short line; without a description, the product's name.
    pub summary: String,
    pub price_cents: i64,
    /// The price in the currency's main unit, such as `99.00`.
    pub price: String,
    pub starts_at_ms: i64,
    pub ends_at_ms: i64,
    pub starts_at_iso: String,
    pub ends_at_iso: String,
    pub per_user: u32,
    pub min_level: i64,
    pub captcha: String,
    pub waves: Vec<PlannedWave>,
    pub unlimited: bool,
    pub picture: Option<PictureView>,
}

/// A picture as the templates show it, with the addresses of its sizes.
#[derive(Clone)]
#[allow(dead_code)] // a template may leave some out
pub(super) struct PictureView {
    pub small: String,
    pub large: String,
    pub small_width: u32,
    pub small_height: u32,
    pub large_width: u32,
    pub large_height: u32,
    pub alt: String,
}

impl SaleView {
    pub fn new(sale: &Sale, currency: &str) -> Self {
        Self {
            id: sale.id.get(),
            product: sale.product.clone(),
            description: sale.description.clone(),
            summary: summary(if sale.description.trim().is_empty() { &sale.product } else { &sale.description }),
            price_cents: sale.price_cents,
            price: price(sale.price_cents, currency),
            starts_at_ms: sale.starts_at_ms,
            ends_at_ms: sale.ends_at_ms,
            starts_at_iso: iso(sale.starts_at_ms),
            ends_at_iso: iso(sale.ends_at_ms),
            per_user: sale.per_user.get(),
            min_level: sale.min_level,
            captcha: sale.captcha.to_string(),
            waves: sale.waves.clone(),
            unlimited: sale.unlimited,
            picture: sale.picture.as_ref().map(PictureView::from),
        }
    }
}

impl From<&Picture> for PictureView {
    fn from(picture: &Picture) -> Self {
        Self {
            small: picture.small_path(),
            large: picture.large_path(),
            small_width: picture.small.width,
            small_height: picture.small.height,
            large_width: picture.large.width,
            large_height: picture.large.height,
            alt: picture.alt.clone(),
        }
    }
}

/// A text in one line, cut if it is too long.
fn summary(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= SUMMARY_MAX {
        return line;
    }
    let cut: String = line.chars().take(SUMMARY_MAX - 1).collect();
    format!("{}…", cut.trim_end())
}

/// A moment in UTC, such as `2026-01-31T08:00:00Z`.
fn iso(ms: i64) -> String {
    DateTime::<Utc>::from_timestamp_millis(ms).unwrap_or_default().to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// An amount of minor units in the currency's main unit. ISO 4217 lists the currencies that are not divided by a hundred.
pub fn price(minor_units: i64, currency: &str) -> String {
    let digits = match currency {
        "BIF" | "CLP" | "DJF" | "GNF" | "ISK" | "JPY" | "KMF" | "KRW" | "PYG" | "RWF" | "UGX" | "UYI" | "VND"
        | "VUV" | "XAF" | "XOF" | "XPF" => 0,
        "BHD" | "IQD" | "JOD" | "KWD" | "LYD" | "OMR" | "TND" => 3,
        _ => 2,
    };
    let unit = 10_i64.pow(digits);
    match digits {
        0 => minor_units.to_string(),
        _ => format!("{}.{:0width$}", minor_units / unit, minor_units % unit, width = digits as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_have_the_digits_of_their_currency() {
        for (units, currency, text) in [
            (9_900, "CNY", "99.00"),
            (5, "EUR", "0.05"),
            (0, "USD", "0.00"),
            (9_900, "JPY", "9900"),
            (1_234, "KWD", "1.234"),
            (100_000_000_000, "CNY", "1000000000.00"),
        ] {
            assert_eq!(price(units, currency), text);
        }
    }

    #[test]
    fn a_summary_is_one_line_and_not_too_long() {
        assert_eq!(summary("  A phone.\nAnd  more. "), "A phone. And more.");
        let long = summary(&"手机 ".repeat(100));
        assert!(long.chars().count() <= SUMMARY_MAX && long.ends_with("手机…"), "{long}");
    }
}
