//! The catalogue of problem codes: what each is, and how the document of the API shows those of one address.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use actix_web::http::StatusCode;
use metrics::Counter;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::schema::{AllOfBuilder, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{ContentBuilder, Ref, RefOr};

/// What is wrong, in one word for programs. The README's catalogue says what to make of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    InvalidRequest,
    Unauthenticated,
    NotBelieved,
    WrongCredentials,
    SignedOut,
    Forbidden,
    ForgedRequest,
    NotStarted,
    Ended,
    WrongKey,
    LevelTooLow,
    UnknownSale,
    UnknownOrder,
    NotFound,
    MethodNotAllowed,
    TooSlow,
    SoldOut,
    AlreadyPurchased,
    OrderNotReady,
    IllegalState,
    Conflict,
    BodyTooLarge,
    IdempotencyMismatch,
    Misfit,
    QuotaExceeded,
    TemporarilyUnavailable,
}

impl Code {
    /// In the order of their declaration.
    const ALL: [Self; 26] = [
        Self::InvalidRequest,
        Self::Unauthenticated,
        Self::NotBelieved,
        Self::WrongCredentials,
        Self::SignedOut,
        Self::Forbidden,
        Self::ForgedRequest,
        Self::NotStarted,
        Self::Ended,
        Self::WrongKey,
        Self::LevelTooLow,
        Self::UnknownSale,
        Self::UnknownOrder,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::TooSlow,
        Self::SoldOut,
        Self::AlreadyPurchased,
        Self::OrderNotReady,
        Self::IllegalState,
        Self::Conflict,
        Self::BodyTooLarge,
        Self::IdempotencyMismatch,
        Self::Misfit,
        Self::QuotaExceeded,
        Self::TemporarilyUnavailable,
    ];

    pub const fn as_str(self) -> &'static str {
        self.terms().1
    }

    pub const fn status(self) -> StatusCode {
        self.terms().0
    }

    pub const fn title(self) -> &'static str {
        self.terms().2
    }

    /// Counts an answer of this code. The counters are looked up once: this is on the way of every loser.
    pub fn count(self) {
        static COUNTERS: OnceLock<Vec<Counter>> = OnceLock::new();
        let counters = COUNTERS.get_or_init(|| Self::ALL.map(|code| counter(code.as_str())).to_vec());
        if let Some(counter) = counters.get(self as usize) {
            counter.increment(1);
        }
    }

    /// Status, code, title.
    const fn terms(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::InvalidRequest => (StatusCode::BAD_REQUEST, "invalid-request", "The request is not valid"),
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated", "A valid bearer token is needed"),
            Self::NotBelieved => {
                (StatusCode::UNAUTHORIZED, "not-believed", "The message is not signed by whom it should be")
            }
            Self::WrongCredentials => (StatusCode::UNAUTHORIZED, "wrong-credentials", "Name or password is wrong"),
            Self::SignedOut => (StatusCode::UNAUTHORIZED, "signed-out", "Sign in first"),
            Self::ForgedRequest => (StatusCode::FORBIDDEN, "forged-request", "This may be another site's doing"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "This is not yours to do"),
            Self::NotStarted => (StatusCode::FORBIDDEN, "not-started", "The sale has not started"),
            Self::Ended => (StatusCode::FORBIDDEN, "ended", "The sale has ended"),
            Self::WrongKey => (StatusCode::FORBIDDEN, "wrong-key", "The purchase key is not the open sale's"),
            Self::LevelTooLow => (StatusCode::FORBIDDEN, "level-too-low", "This sale is for higher levels"),
            Self::UnknownSale => (StatusCode::NOT_FOUND, "unknown-sale", "There is no such sale"),
            Self::UnknownOrder => (StatusCode::NOT_FOUND, "unknown-order", "You have no such order"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found", "There is nothing here"),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "This address does not take this method")
            }
            Self::TooSlow => (StatusCode::REQUEST_TIMEOUT, "too-slow", "The body did not come in time"),
            Self::SoldOut => (StatusCode::CONFLICT, "sold-out", "Sold out"),
            Self::AlreadyPurchased => {
                (StatusCode::CONFLICT, "already-purchased", "You have bought all that one buyer may")
            }
            Self::OrderNotReady => {
                (StatusCode::CONFLICT, "order-not-ready", "The order is still being made; try again shortly")
            }
            Self::IllegalState => (StatusCode::CONFLICT, "illegal-state", "The order's status does not allow this"),
            Self::Conflict => (StatusCode::CONFLICT, "conflict", "It does not go with what is there"),
            Self::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large"),
            Self::IdempotencyMismatch => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency-mismatch",
                "This Idempotency-Key was used for another request",
            ),
            Self::Misfit => (StatusCode::UNPROCESSABLE_ENTITY, "misfit", "It does not fit what is known"),
            Self::QuotaExceeded => (StatusCode::TOO_MANY_REQUESTS, "quota-exceeded", "Too many requests"),
            Self::TemporarilyUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "temporarily-unavailable", "Please try again shortly")
            }
        }
    }

    /// Headers that always come with this code.
    fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::NotBelieved => &[("WWW-Authenticate", "`Signature`")],
            Self::Unauthenticated => &[("WWW-Authenticate", "`Bearer`")],
            Self::WrongCredentials | Self::SignedOut => &[("WWW-Authenticate", "`Cookie`")],
            Self::TemporarilyUnavailable => &[("Retry-After", "Seconds")],
            Self::QuotaExceeded => &[
                ("Retry-After", "Seconds until the window ends"),
                ("RateLimit-Policy", "The limit that was reached: its name, quota and window in seconds"),
                ("RateLimit", "What is left of it, and the seconds until it is whole again"),
            ],
            _ => &[],
        }
    }
}

/// Counts a purchase that was accepted.
pub fn count_accepted() {
    static COUNTER: OnceLock<Counter> = OnceLock::new();
    COUNTER.get_or_init(|| counter("accepted")).increment(1);
}

fn counter(code: &'static str) -> Counter {
    metrics::counter!("seckill_answers_total", "code" => code)
}

/// The answers of an address's problems: one a status, with the codes that it may carry.
pub fn answers(codes: &[Code]) -> BTreeMap<String, RefOr<Response>> {
    let mut by_status: BTreeMap<String, Vec<Code>> = BTreeMap::new();
    for code in codes {
        by_status.entry(code.status().as_str().to_owned()).or_default().push(*code);
    }
    by_status.into_iter().map(|(status, codes)| (status, answer(&codes).into())).collect()
}

fn answer(codes: &[Code]) -> Response {
    let meanings: Vec<_> = codes.iter().map(|code| format!("`{}`: {}.", code.as_str(), code.title())).collect();
    let one_of_these = ObjectBuilder::new()
        .schema_type(SchemaType::new(Type::String))
        .enum_values(Some(codes.iter().map(|code| code.as_str())));
    let schema = AllOfBuilder::new()
        .item(Ref::from_schema_name("Problem"))
        .item(ObjectBuilder::new().property("code", one_of_these));
    let content = ContentBuilder::new().schema(Some(schema)).build();
    let response = ResponseBuilder::new().description(meanings.join(" ")).content("application/problem+json", content);
    let headers = codes.iter().flat_map(|code| code.headers());
    headers.fold(response, |response, (name, means)| response.header(*name, text_header(means))).build()
}

fn text_header(means: &str) -> Header {
    let text = ObjectBuilder::new().schema_type(SchemaType::new(Type::String));
    HeaderBuilder::new().schema(Some(text)).description(Some(means)).build()
}

/// Names the problems that an address answers with, as `#[utoipa::path]` takes them among its `responses`.
macro_rules! problems {
    ($name:ident: $($code:ident),+ $(,)?) => {
        struct $name;

        impl utoipa::IntoResponses for $name {
            fn responses()
            -> std::collections::BTreeMap<String, utoipa::openapi::RefOr<utoipa::openapi::response::Response>> {
                crate::http::codes::answers(&[$(crate::http::codes::Code::$code),+])
            }
        }
    };
}
pub(super) use problems;

#[cfg(test)]
mod tests {
    use utoipa::PartialSchema;

    use super::*;

    #[test]
    fn a_code_is_written_in_one_way() {
        let schema = serde_json::to_value(Code::schema()).unwrap();
        let words = schema["enum"].as_array().unwrap();
        assert_eq!(words.len(), Code::ALL.len());
        for (place, word) in words.iter().enumerate() {
            let code: Code = serde_json::from_value(word.clone()).unwrap();
            assert_eq!(word, code.as_str());
            assert_eq!((code, code as usize), (Code::ALL[place], place));
        }
    }
}
