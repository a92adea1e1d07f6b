//! Payments (money in) and refunds (money out): the requests for them, and the documents that show them.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Money in or money out. Calls about arrivals name payments `pay`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransferKind {
    #[serde(alias = "pay")]
    Payment,
    Refund,
}

impl TransferKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Payment => "payment",
            Self::Refund => "refund",
        }
    }

    const fn prefix(self) -> &'static str {
        match self {
            Self::Payment => "pay",
            Self::Refund => "ref",
        }
    }
}

/// Three capital letters, such as CNY.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Currency([u8; 3]);

impl TryFrom<String> for Currency {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let letters: Option<[u8; 3]> = text.as_bytes().try_into().ok();
        letters
            .filter(|l| l.iter().all(u8::is_ascii_uppercase))
            .map(Self)
            .ok_or("a currency must be three capital letters, such as CNY")
    }
}

impl From<Currency> for String {
    fn from(currency: Currency) -> Self {
        currency.0.iter().map(|letter| char::from(*letter)).collect()
    }
}

/// The order that a payment pays for, or the payment that a refund gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cause {
    Payment { order_id: Uuid },
    Refund { payment_key: Uuid },
}

/// A request for a payment or refund. All requests with one key must be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferRequest {
    #[serde(flatten)]
    pub cause: Cause,
    pub amount_cents: i64,
    pub currency: Currency,
}

impl TransferRequest {
    pub const fn kind(&self) -> TransferKind {
        match self.cause {
            Cause::Payment { .. } => TransferKind::Payment,
            Cause::Refund { .. } => TransferKind::Refund,
        }
    }

    /// Reads the request from the body of a call.
    ///
    /// # Errors
    /// The body is malformed, or the amount is too small.
    pub fn parse(kind: TransferKind, body: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Payment {
            order_id: Uuid,
            amount_cents: i64,
            currency: Currency,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Refund {
            payment_key: Uuid,
            amount_cents: i64,
            currency: Currency,
        }
        let malformed = |error: serde_json::Error| error.to_string();
        let (request, min_cents) = match kind {
            TransferKind::Payment => {
                let Payment { order_id, amount_cents, currency } = serde_json::from_slice(body).map_err(malformed)?;
                (Self { cause: Cause::Payment { order_id }, amount_cents, currency }, 0)
            }
            TransferKind::Refund => {
                let Refund { payment_key, amount_cents, currency } = serde_json::from_slice(body).map_err(malformed)?;
                (Self { cause: Cause::Refund { payment_key }, amount_cents, currency }, 1)
            }
        };
        if request.amount_cents < min_cents {
            return Err(format!("amount_cents must be at least {min_cents}"));
        }
        Ok(request)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Pending,
    Succeeded,
    Failed,
}

impl Status {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}

/// A payment or refund, as answers and callbacks show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Document {
    pub key: Uuid,
    pub id: String,
    pub status: Status,
    #[serde(flatten)]
    pub request: TransferRequest,
}

impl Document {
    pub fn new(key: Uuid, n: u64, status: Status, request: TransferRequest) -> Self {
        Self { key, id: format!("{}_{n}", request.kind().prefix()), status, request }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_has_the_documented_fields() {
        let body = json!({ "order_id": Uuid::from_u128(7), "amount_cents": 100, "currency": "CNY" });
        let request = TransferRequest::parse(TransferKind::Payment, body.to_string().as_bytes()).unwrap();
        let written = serde_json::to_value(Document::new(Uuid::from_u128(1), 3, Status::Pending, request)).unwrap();
        let expected = json!({
            "key": Uuid::from_u128(1), "id": "pay_3", "status": "pending",
            "order_id": Uuid::from_u128(7), "amount_cents": 100, "currency": "CNY",
        });
        assert_eq!(written, expected);
    }

    #[test]
    fn a_body_with_a_wrong_or_unknown_field_is_refused() {
        let refund = |amount: &str, currency: &str, more: &str| {
            let key = Uuid::from_u128(1);
            let body = format!(r#"{{"payment_key":"{key}","amount_cents":{amount},"currency":"{currency}"{more}}}"#);
            TransferRequest::parse(TransferKind::Refund, body.as_bytes())
        };
        assert!(refund("1", "CNY", "").is_ok());
        for (amount, currency, more) in [
            ("0", "CNY", ""),
            ("-1", "CNY", ""),
            ("1.5", "CNY", ""),
            ("1e3", "CNY", ""),
            ("\"1\"", "CNY", ""),
            ("9223372036854775808", "CNY", ""),
            ("1", "cny", ""),
            ("1", "CNYX", ""),
            ("1", "CNY", r#","order_id":"00000000-0000-0000-0000-000000000001""#),
        ] {
            assert!(refund(amount, currency, more).is_err(), "{amount} {currency} {more}");
        }
    }
}
