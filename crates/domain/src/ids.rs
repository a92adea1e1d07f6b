//! Identifiers. Each is checked once, when it enters the program.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// Why an input was refused. The text may be shown to the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct Invalid {
    /// As the caller knows it.
    pub field: &'static str,
    pub problem: Cow<'static, str>,
}

impl Invalid {
    pub const fn new(field: &'static str, problem: &'static str) -> Self {
        Self { field, problem: Cow::Borrowed(problem) }
    }
}

/// A sale's number, 1 or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(minimum = 1, maximum = 9223372036854775807_i64)]
pub struct SaleId(i64);

impl SaleId {
    /// Digits only.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse::<i64>() {
            Ok(id) if digits && id > 0 => Ok(Self(id)),
            _ => Err(Invalid::new("sale id", "must be a positive whole number")),
        }
    }

    pub const fn from_db(id: i64) -> Self {
        Self(id)
    }

    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for SaleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The kind and number of a document that many callers read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DocId {
    Sale(i64),
    Product(i64),
}

impl fmt::Display for DocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sale(id) => write!(f, "sale:{id}"),
            Self::Product(id) => write!(f, "product:{id}"),
        }
    }
}

/// A buyer, as the issuer of tokens names one: `auth0|5f7c`, an e-mail address, a URN. Never normalized: two ids with different bytes are two
/// buyers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct UserId(Box<str>);

impl UserId {
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if (1..=128).contains(&text.len()) && !text.chars().any(char::is_control) {
            Ok(Self(text.into()))
        } else {
            Err(Invalid::new("user", "must be 1 to 128 bytes of UTF-8 without control characters"))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn into_string(self) -> String {
        self.0.into_string()
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How many units a purchase asks for, 1 or more. The sale's `per_user` bounds them further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(minimum = 1, maximum = 2147483647)]
pub struct Units(u32);

impl Units {
    pub const ONE: Self = Self(1);
    pub fn parse(n: u64) -> Result<Self, Invalid> {
        match u32::try_from(n) {
            // The column's type is integer.
            Ok(n) if (1..=i32::MAX as u32).contains(&n) => Ok(Self(n)),
            _ => Err(Invalid::new("quantity", "must be a whole number of at least 1")),
        }
    }

    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The key by which a client repeats a purchase without buying twice: 1 to 200 visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey(Box<str>);

impl IdempotencyKey {
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if (1..=200).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic()) {
            Ok(Self(text.into()))
        } else {
            Err(Invalid::new("Idempotency-Key", "must be 1 to 200 visible ASCII characters"))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The number of a sale's fill of Redis, which each hold names. Every refill raises it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub i64);

/// The number of one holding of a lock. It rises from one holder to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FenceToken(pub i64);

impl fmt::Display for FenceToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One of the parts of a sale's stock, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard(pub i16);

impl Shard {
    /// The only shard of most sales.
    pub const FIRST: Self = Self(0);
}

macro_rules! uuids {
    ($($(#[$doc:meta])* $name:ident),+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$name> for Uuid {
            fn from(id: $name) -> Self {
                id.0
            }
        }
    )+};
}

uuids! {
    /// The id of an order, and of the purchase that became it.
    OrderId,
    /// The id of a group of purchases that are committed together. It sorts by time.
    GroupId,
    /// The id of a wave: units that a sale gets some time after its start (protocol, rule 14).
    WaveId,
    /// A payment; also the Idempotency-Key that its channel sees.
    PaymentId,
    /// A refund.
    RefundId,
    /// A refund's Idempotency-Key at its channel, and the item's id in the outflow. A declined refund is tried again under another key.
    RefundKey
}

impl OrderId {
    /// The same id for every repeat of a purchase (protocol, rule 1). Without the secret it cannot be guessed. BLAKE3 in keyed mode, as a
    /// UUID of version 8.
    pub fn derive(secret: &[u8; 32], sale: SaleId, user: &UserId, key: &IdempotencyKey) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(secret);
        hasher.update(&sale.get().to_be_bytes());
        // A user id contains no control characters, and so no NUL: so no two different triples give the same bytes.
        hasher.update(user.as_str().as_bytes()).update(&[0]).update(key.0.as_bytes());
        Self(uuid_from(&hasher))
    }

    /// What buyers see of an order's id and tell the shop: the last 8 characters.
    pub fn number(self) -> String {
        self.0.simple().to_string().split_off(24)
    }

    /// Reads a number as people write it: in capitals, or with a `#` before it.
    pub fn parse_number(text: &str) -> Result<String, Invalid> {
        let number = text.trim().trim_start_matches('#').to_ascii_lowercase();
        if number.len() == 8 && number.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            Ok(number)
        } else {
            Err(Invalid::new("number", "must be 8 characters, each 0 to 9 or a to f"))
        }
    }
}

impl GroupId {
    /// The group of one order has the order's id, so repeated commits of the order have the same group.
    pub fn of_one(order: OrderId) -> Self {
        Self(order.0)
    }
}

/// The first half of a hash as a UUID of version 8.
pub(crate) fn uuid_from(hasher: &blake3::Hasher) -> Uuid {
    let mut bytes = [0; 16];
    hasher.finalize_xof().fill(&mut bytes);
    Uuid::new_v8(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_order_is_the_end_of_its_id() {
        let order = OrderId(Uuid::from_u128(0x0197_b2f0_0000_7000_8000_0000_0a0b_c0de));
        assert_eq!(order.number(), "0a0bc0de");
        assert!(order.to_string().ends_with(&order.number()));
        for written in ["0a0bc0de", "0A0BC0DE", "#0a0bc0de", "  #0A0bc0de "] {
            assert_eq!(OrderId::parse_number(written), Ok(order.number()), "{written}");
        }
        for wrong in ["", "#", "0a0bc0d", "0a0bc0def", "0a0bc0dg", "0a0bc0d\u{e9}", &order.to_string()] {
            assert!(OrderId::parse_number(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sale_ids_are_positive_digits() {
        assert_eq!(SaleId::parse("42").map(SaleId::get), Ok(42));
        for bad in ["", "0", "-1", "+1", "1.5", "1e3", " 1", "9223372036854775808", "{1}", "1\0"] {
            assert!(SaleId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn user_ids_are_bounded_texts_without_control_characters() {
        for good in ["a-B_9", "auth0|5f7c", "a b", "日本", "#", "\u{301}", &"x".repeat(128), &"🦀".repeat(32)] {
            assert!(UserId::parse(good).is_ok(), "{good:?}");
        }
        for bad in ["", "a\0", "a\n", "\u{7f}", "\u{85}", &"x".repeat(129), &"🦀".repeat(33)] {
            assert!(UserId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_order_id_depends_on_secret_sale_user_and_key() {
        let id = |secret: u8, sale: i64, user: &str, key: &str| {
            let (user, key) = (UserId::parse(user).unwrap(), IdempotencyKey::parse(key).unwrap());
            OrderId::derive(&[secret; 32], SaleId::from_db(sale), &user, &key)
        };
        let base = id(1, 1, "ann", "k");
        assert_eq!(base, id(1, 1, "ann", "k"));
        for other in [id(2, 1, "ann", "k"), id(1, 2, "ann", "k"), id(1, 1, "anna", "k"), id(1, 1, "ann", "kk")] {
            assert_ne!(base, other);
        }
        assert_eq!(base.0.get_version_num(), 8);
    }
}
