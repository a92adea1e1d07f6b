//! Currencies of ISO 4217, and amounts of money as people read them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::ids::Invalid;

/// A currency of ISO 4217 that amounts can be in. Gold and the codes for tests have no minor unit, so they are none. Currencies that
/// were replaced are known, because sales of their time are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Currency(iso_currency::Currency);

impl Currency {
    /// All currencies, by code.
    pub fn all() -> impl Iterator<Item = Self> {
        let letters = || b'A'..=b'Z';
        let codes = letters().flat_map(move |a| letters().flat_map(move |b| letters().map(move |c| [a, b, c])));
        codes.filter_map(|code| str::from_utf8(&code).ok()?.parse().ok())
    }

    pub fn code(self) -> &'static str {
        self.0.code()
    }

    /// Digits after the point. Browsers follow CLDR, which has fewer for some currencies.
    pub fn digits(self) -> u32 {
        self.0.exponent().unwrap_or_default().into()
    }

    /// An amount in the main unit, such as `99.00`.
    pub fn amount(self, minor_units: i64) -> String {
        let sign = if minor_units < 0 { "-" } else { "" };
        let (unit, units) = (10_u64.pow(self.digits()), minor_units.unsigned_abs());
        match self.digits() {
            0 => format!("{sign}{units}"),
            digits => format!("{sign}{}.{:0width$}", units / unit, units % unit, width = digits as usize),
        }
    }
}

impl FromStr for Currency {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let known = iso_currency::Currency::from_code(text);
        known
            .filter(|currency| currency.exponent().is_some())
            .map(Self)
            .ok_or(Invalid::new("currency", "must be a currency of ISO 4217 in capital letters, such as CNY"))
    }
}

impl PartialSchema for Currency {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(Type::String).description(Some("A currency of ISO 4217"));
        text.enum_values(Some(Self::all().map(Self::code))).into()
    }
}

impl ToSchema for Currency {}

impl TryFrom<String> for Currency {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<Currency> for String {
    fn from(currency: Currency) -> Self {
        currency.code().to_owned()
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_the_digits_of_iso_4217() {
        for (units, currency, text) in [
            (9_900, "CNY", "99.00"),
            (5, "EUR", "0.05"),
            (0, "USD", "0.00"),
            (9_900, "JPY", "9900"),
            (1_234, "KWD", "1.234"),
            (12_345, "IDR", "123.45"),
            (12_345, "IQD", "12.345"),
            (12_345, "CLF", "1.2345"),
            (-5, "HUF", "-0.05"),
            (100_000_000_000, "CNY", "1000000000.00"),
        ] {
            assert_eq!(currency.parse::<Currency>().unwrap().amount(units), text);
        }
    }

    #[test]
    fn only_currencies_with_a_minor_unit_are_known() {
        for wrong in ["", "cny", "CN", "CNYY", "ZZZ", "XAU", "XXX", "XTS", "¥"] {
            assert!(wrong.parse::<Currency>().is_err(), "{wrong}");
        }
        let all: Vec<Currency> = Currency::all().collect();
        assert!((150..200).contains(&all.len()), "{}", all.len());
        assert!(all.iter().all(|currency| currency.code().parse() == Ok(*currency)));
    }

    /// A sale in any other currency would keep an instance from loading its catalogue.
    #[test]
    fn the_schema_takes_the_currencies_that_the_program_knows() {
        let migration = include_str!("../../../migrations/0001_sales.sql");
        let (_, list) = migration.split_once("CHECK (currency IN (").unwrap();
        let list = list.split_once("))").unwrap().0;
        let codes: Vec<&str> = list.split(',').map(|code| code.trim().trim_matches('\'')).collect();
        assert_eq!(codes, Currency::all().map(Currency::code).collect::<Vec<_>>());
    }
}
