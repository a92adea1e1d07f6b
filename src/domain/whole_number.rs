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
