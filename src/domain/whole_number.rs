//! Whole numbers in JSON, for `#[serde(deserialize_with)]`. In JSON Schema, and so in the API's document, `5.0` is the same whole number as
//! `5`; serde alone would refuse it.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// A whole number that fits `N`.
pub fn required<'de, D: Deserializer<'de>, N: TryFrom<i128>>(deserializer: D) -> Result<N, D::Error> {
    WholeNumber::deserialize(deserializer).map(|WholeNumber(number)| number)
}

/// A whole number that fits `N`, or null.
pub fn optional<'de, D: Deserializer<'de>, N: TryFrom<i128>>(deserializer: D) -> Result<Option<N>, D::Error> {
    Option::<WholeNumber<N>>::deserialize(deserializer).map(|found| found.map(|WholeNumber(number)| number))
}

struct WholeNumber<N>(N);

impl<'de, N: TryFrom<i128>> Deserialize<'de> for WholeNumber<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Number(PhantomData)).map(Self)
    }
}

struct Number<N>(PhantomData<N>);

impl<N: TryFrom<i128>> Number<N> {
    fn fit<E: Error>(&self, number: i128, given: Unexpected<'_>) -> Result<N, E> {
        N::try_from(number).map_err(|_| E::invalid_value(given, self))
    }
}

impl<N: TryFrom<i128>> Visitor<'_> for Number<N> {
    type Value = N;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number within bounds")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<N, E> {
        self.fit(number.into(), Unexpected::Signed(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<N, E> {
        self.fit(number.into(), Unexpected::Unsigned(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<N, E> {
        if number.fract() != 0.0 {
            return Err(E::invalid_type(Unexpected::Float(number), &self));
        }
        // Exact, or beyond the range of an i128 its greatest or least value, which fits nothing.
        self.fit(number as i128, Unexpected::Float(number))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    struct Numbers {
        #[serde(default, deserialize_with = "super::optional")]
        signed: Option<i64>,
        #[serde(default, deserialize_with = "super::required")]
        unsigned: u64,
    }

    fn read(text: &str) -> Result<Numbers, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_fraction_of_zero() {
        for text in [
            r#"{"signed": -5, "unsigned": 5}"#,
            r#"{"signed": -5.0, "unsigned": 5.00}"#,
            r#"{"signed": -0.5e1, "unsigned": 5e0}"#,
        ] {
            assert_eq!(read(text), Ok(Numbers { signed: Some(-5), unsigned: 5 }), "{text}");
        }
        assert_eq!(read(r#"{"signed": null}"#), Ok(Numbers { signed: None, unsigned: 0 }));
        let ends = read(r#"{"signed": -9223372036854775808, "unsigned": 18446744073709551615}"#).unwrap();
        assert_eq!(ends, Numbers { signed: Some(i64::MIN), unsigned: u64::MAX });
    }

    #[test]
    fn what_is_no_whole_number_or_does_not_fit_is_refused() {
        assert!(read(r#"{"signed": 1.5}"#).unwrap_err().starts_with("invalid type: floating point `1.5`"));
        let signed = ["9223372036854775808", "1e300", "\"5\"", "true"].map(|value| ("signed", value));
        let unsigned = ["-1", "-1.0", "18446744073709551616", "null"].map(|value| ("unsigned", value));
        for (field, value) in signed.into_iter().chain(unsigned) {
            assert!(read(&format!(r#"{{"{field}": {value}}}"#)).is_err(), "{field} {value}");
        }
    }
}
