//! JSON objects alone, as the API's document says. serde would also read a struct from an array of its fields.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Number, Value};

struct Object<T>(T);

/// Reads a document that must be an object.
pub fn from_slice<'de, T: Deserialize<'de>>(json: &'de [u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(json).map(|Object(value)| value)
}

/// Reads the body of a request, which must be an object. In JSON Schema, and so in the API's document, `5.0` is the same whole number as
/// `5`; serde alone would refuse it.
pub fn from_body<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    from_slice(json).or_else(|error| {
        if !error.to_string().starts_with("invalid type: floating point") {
            return Err(error);
        }
        serde_json::from_value(without_zero_fractions(serde_json::from_slice(json)?)).map(|Object(value)| value)
    })
}

fn without_zero_fractions(value: Value) -> Value {
    match value {
        Value::Number(number) => {
            let whole = number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0);
            // A cast beyond the range of an i128 gives an end of it, which is no JSON number.
            Value::Number(whole.and_then(|whole| Number::from_i128(whole as i128)).unwrap_or(number))
        }
        Value::Array(values) => values.into_iter().map(without_zero_fractions).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, without_zero_fractions(value))).collect()
        }
        other => other,
    }
}

/// For `#[serde(deserialize_with)]`: an object, or null.
pub(crate) fn optional<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Option::<Object<T>>::deserialize(deserializer).map(|value| value.map(|Object(value)| value))
}

/// For `#[serde(deserialize_with)]`: a list of objects, or null.
pub fn optional_list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    let list = Option::<Vec<Object<T>>>::deserialize(deserializer)?;
    Ok(list.map(|list| list.into_iter().map(|Object(value)| value).collect()))
}

/// For `#[serde(deserialize_with)]`: a list of objects.
pub fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Vec::<Object<T>>::deserialize(deserializer).map(|list| list.into_iter().map(|Object(value)| value).collect())
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields))
    }
}
