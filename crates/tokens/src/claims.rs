//! The claims of a token. One that is missing or has another form than we read becomes a fault, which names it.

use std::borrow::Cow;
use std::fmt;

use seckill_domain::ids::UserId;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::Buyer;
use crate::fault::TokenFault;

/// The claims' names, and what they must say.
#[derive(Debug)]
pub(crate) struct ClaimTerms {
    pub(crate) id: String,
    pub(crate) level: String,
    pub(crate) audience: Option<String>,
    pub(crate) issuer: Option<String>,
    /// By which the issuer's clock may differ.
    pub(crate) leeway_ms: i64,
}

#[derive(Debug, Default)]
pub(crate) struct Claims<'a> {
    id: Claim<'a>,
    level: Claim<'a>,
    exp: Claim<'a>,
    nbf: Claim<'a>,
    aud: Claim<'a>,
    iss: Claim<'a>,
}

#[derive(Debug, Default)]
enum Claim<'a> {
    /// Missing, or null.
    #[default]
    Missing,
    Text(Cow<'a, str>),
    Texts(Vec<Cow<'a, str>>),
    Whole(i64),
    Fraction(f64),
    Other,
}

impl ClaimTerms {
    /// Reads the claims without judging them. `None`: the text is no JSON object, or has one of them twice.
    pub(crate) fn read<'a>(&self, json: &'a [u8]) -> Option<Claims<'a>> {
        let mut json = serde_json::Deserializer::from_slice(json);
        let claims = self.deserialize(&mut json).ok()?;
        json.end().ok()?;
        Some(claims)
    }

    pub(crate) fn check(&self, claims: &Claims, now_ms: i64) -> Result<Buyer, TokenFault> {
        let Claims { id, level, exp, nbf, aud, iss } = claims;
        let is_for_us = match (&self.audience, aud) {
            (None, _) => true,
            (Some(name), Claim::Text(one)) => one == name,
            (Some(name), Claim::Texts(several)) => several.iter().any(|one| one == name),
            _ => false,
        };
        if !is_for_us {
            return Err(TokenFault::Audience);
        }
        // A token has one issuer.
        if !self.issuer.as_ref().is_none_or(|name| matches!(iss, Claim::Text(one) if one == name)) {
            return Err(TokenFault::Issuer);
        }
        let expires_at_ms = exp.moment_ms().ok_or(TokenFault::Expiry)?.saturating_add(self.leeway_ms);
        if expires_at_ms <= now_ms {
            return Err(TokenFault::Expired);
        }
        if !matches!(nbf, Claim::Missing) {
            let begins_at_ms = nbf.moment_ms().ok_or(TokenFault::Beginning)?.saturating_sub(self.leeway_ms);
            if begins_at_ms > now_ms {
                return Err(TokenFault::Early);
            }
        }
        let user = id.text().and_then(|id| UserId::parse(id).ok()).ok_or(TokenFault::Id)?;
        Ok(Buyer { user, level: level.level().ok_or(TokenFault::Level)?, expires_at_ms })
    }
}

impl Claims<'_> {
    pub(crate) fn id(&self) -> Option<&str> {
        self.id.text()
    }
}

impl Claim<'_> {
    fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// A NumericDate (RFC 7519, 2): seconds since the epoch, which may have a fraction. Absurd numbers become the first and the last moment.
    fn moment_ms(&self) -> Option<i64> {
        match self {
            Self::Whole(seconds) => Some(seconds.saturating_mul(1000)),
            Self::Fraction(seconds) => Some((seconds * 1000.0).round() as i64),
            _ => None,
        }
    }

    fn level(&self) -> Option<i64> {
        match self {
            Self::Missing => Some(0),
            Self::Whole(level) => Some(*level),
            // In JSON, 5.0 is the same number as 5.
            Self::Fraction(level) if level.fract() == 0.0 => Some(*level as i64),
            _ => None,
        }
    }
}

impl<'de> DeserializeSeed<'de> for &ClaimTerms {
    type Value = Claims<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &ClaimTerms {
    type Value = Claims<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut claims = Claims::default();
        while let Some(Claim::Text(name)) = fields.next_key()? {
            let place = match &*name {
                name if name == self.id => &mut claims.id,
                name if name == self.level => &mut claims.level,
                "exp" => &mut claims.exp,
                "nbf" => &mut claims.nbf,
                "aud" => &mut claims.aud,
                "iss" => &mut claims.iss,
                _ => {
                    fields.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if !matches!(place, Claim::Missing) {
                return Err(A::Error::custom("a claim is given twice"));
            }
            *place = fields.next_value()?;
        }
        Ok(claims)
    }
}

impl<'de> Deserialize<'de> for Claim<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyClaim)
    }
}

struct AnyClaim;

impl<'de> Visitor<'de> for AnyClaim {
    type Value = Claim<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a claim")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Claim::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Claim::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Claim::Whole(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Claim::Whole(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Claim::Fraction(number))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Claim::Other)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Claim::Missing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut texts = Vec::new();
        while let Some(item) = items.next_element()? {
            // An item of another form names nobody.
            if let Claim::Text(text) = item {
                texts.push(text);
            }
        }
        Ok(Claim::Texts(texts))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Claim::Other)
    }
}
