//! The problem codes: status and title of each, and the problems of an address as the API's document lists them.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use actix_web::http::StatusCode;
use metrics::{Counter, Histogram};
use serde::Serialize;
use strum::{IntoStaticStr, VariantArray};
use utoipa::ToSchema;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::schema::{AllOfBuilder, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{ContentBuilder, Ref, RefOr};

use super::problem::Problem;

/// The error as one word for programs. docs/errors.md tells callers what to do about each code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema, IntoStaticStr, VariantArray)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", const_into_str)]
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
    NotAllowed,
    PassInvalid,
    ChallengeFailed,
    UnknownSale,
    UnknownOrder,
    NotFound,
    MethodNotAllowed,
    TooSlow,
    SoldOut,
    AlreadyPurchased,
    NoChallenge,
    OrderNotReady,
    IllegalState,
    Conflict,
    UnworkableTerms,
    BodyTooLarge,
    Misdirected,
    IdempotencyMismatch,
    Misfit,
    QuotaExceeded,
    TemporarilyUnavailable,
}

impl Code {
    pub(crate) fn count(self) {
        static COUNTERS: OnceLock<Vec<Counter>> = OnceLock::new();
        let counters = COUNTERS.get_or_init(|| Self::VARIANTS.iter().map(|code| counter(code.into_str())).collect());
        if let Some(counter) = counters.get(self as usize) {
            counter.increment(1);
        }
    }

    pub(crate) const fn status(self) -> StatusCode {
        self.status_and_title().0
    }

    pub(crate) const fn title(self) -> &'static str {
        self.status_and_title().1
    }

    const fn status_and_title(self) -> (StatusCode, &'static str) {
        match self {
            Self::InvalidRequest => (StatusCode::BAD_REQUEST, "The request is not valid"),
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "A valid bearer token is required"),
            Self::NotBelieved => (StatusCode::UNAUTHORIZED, "The signature does not match any known key"),
            Self::WrongCredentials => (StatusCode::UNAUTHORIZED, "Name or password is wrong"),
            Self::SignedOut => (StatusCode::UNAUTHORIZED, "Sign in first"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "You are not allowed to do this"),
            Self::ForgedRequest => (StatusCode::FORBIDDEN, "The request may come from another site"),
            Self::NotStarted => (StatusCode::FORBIDDEN, "The sale has not started"),
            Self::Ended => (StatusCode::FORBIDDEN, "The sale has ended"),
            Self::WrongKey => (StatusCode::FORBIDDEN, "The purchase key is not the open sale's"),
            Self::LevelTooLow => (StatusCode::FORBIDDEN, "This sale requires a higher level"),
            Self::NotAllowed => (StatusCode::FORBIDDEN, "You cannot buy in this sale"),
            Self::PassInvalid => (StatusCode::FORBIDDEN, "This sale requires a pass: solve a challenge first"),
            Self::ChallengeFailed => (StatusCode::FORBIDDEN, "The challenge was not solved; ask for another one"),
            Self::UnknownSale => (StatusCode::NOT_FOUND, "There is no such sale"),
            Self::UnknownOrder => (StatusCode::NOT_FOUND, "You have no such order"),
            Self::NotFound => (StatusCode::NOT_FOUND, "There is nothing here"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "This address does not support this method"),
            Self::TooSlow => (StatusCode::REQUEST_TIMEOUT, "The body did not arrive in time"),
            Self::SoldOut => (StatusCode::CONFLICT, "Sold out"),
            Self::AlreadyPurchased => (StatusCode::CONFLICT, "You have bought all that one buyer may"),
            Self::NoChallenge => (StatusCode::CONFLICT, "This sale asks for no such challenge"),
            Self::OrderNotReady => (StatusCode::CONFLICT, "The order is still being created; try again shortly"),
            Self::IllegalState => (StatusCode::CONFLICT, "The order's status does not allow this"),
            Self::Conflict => (StatusCode::CONFLICT, "Conflicts with the current state"),
            Self::UnworkableTerms => (StatusCode::CONFLICT, "These terms are contradictory"),
            Self::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "The body is too large"),
            Self::Misdirected => (StatusCode::MISDIRECTED_REQUEST, "This name is not the service's"),
            Self::IdempotencyMismatch => {
                (StatusCode::UNPROCESSABLE_ENTITY, "This Idempotency-Key was used for another request")
            }
            Self::Misfit => (StatusCode::UNPROCESSABLE_ENTITY, "The callback contradicts what is known"),
            Self::QuotaExceeded => (StatusCode::TOO_MANY_REQUESTS, "Too many requests"),
            Self::TemporarilyUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "Please try again shortly"),
        }
    }

    fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::NotBelieved => &[("WWW-Authenticate", "`Signature`")],
            Self::Unauthenticated => &[("WWW-Authenticate", "`Bearer`")],
            Self::WrongCredentials | Self::SignedOut => &[("WWW-Authenticate", "`Cookie`")],
            Self::TemporarilyUnavailable => &[("Retry-After", "Seconds")],
            Self::QuotaExceeded => &[
                ("Retry-After", "Seconds until the window ends"),
                ("RateLimit-Policy", "The limit that was reached: its name, quota, and window in seconds"),
                ("RateLimit", "Requests left, and seconds until the quota is whole again"),
            ],
            _ => &[],
        }
    }
}

pub fn count_accepted(took: Duration) {
    static COUNTERS: OnceLock<(Counter, Histogram)> = OnceLock::new();
    let (counter, seconds) =
        COUNTERS.get_or_init(|| (counter("accepted"), metrics::histogram!("seckill_purchase_seconds")));
    counter.increment(1);
    seconds.record(took.as_secs_f64());
}

fn counter(code: &'static str) -> Counter {
    metrics::counter!("seckill_answers_total", "code" => code)
}

/// The answers of an address that are problems: one for each status, with the codes that it may carry.
pub fn answers(codes: &[Code]) -> BTreeMap<String, RefOr<Response>> {
    let mut by_status: BTreeMap<String, Vec<Code>> = BTreeMap::new();
    for code in codes {
        by_status.entry(code.status().as_str().to_owned()).or_default().push(*code);
    }
    by_status.into_iter().map(|(status, codes)| (status, answer(&codes).into())).collect()
}

fn answer(codes: &[Code]) -> Response {
    let meanings: Vec<_> = codes.iter().map(|code| format!("`{}`: {}.", code.into_str(), code.title())).collect();
    let code = ObjectBuilder::new()
        .schema_type(SchemaType::new(Type::String))
        .enum_values(Some(codes.iter().map(|code| code.into_str())));
    let schema =
        AllOfBuilder::new().item(Ref::from_schema_name("Problem")).item(ObjectBuilder::new().property("code", code));
    let examples = codes.iter().map(|code| {
        let example = ExampleBuilder::new().summary(code.title()).value(Problem::example(*code).ok());
        (code.into_str(), example.build())
    });
    let content = ContentBuilder::new().schema(Some(schema)).examples_from_iter(examples).build();
    let response = ResponseBuilder::new().description(meanings.join(" ")).content("application/problem+json", content);
    let headers = codes.iter().flat_map(|code| code.headers());
    headers.fold(response, |response, (name, meaning)| response.header(*name, text_header(meaning))).build()
}

fn text_header(meaning: &str) -> Header {
    let text = ObjectBuilder::new().schema_type(SchemaType::new(Type::String));
    HeaderBuilder::new().schema(Some(text)).description(Some(meaning)).build()
}

/// Declares the problems that an address answers with, for the `responses` of `#[utoipa::path]`.
#[macro_export]
macro_rules! problems {
    ($vis:vis $name:ident: $($code:ident),+ $(,)?) => {
        $vis struct $name;

        impl utoipa::IntoResponses for $name {
            fn responses()
            -> std::collections::BTreeMap<String, utoipa::openapi::RefOr<utoipa::openapi::response::Response>> {
                $crate::codes::answers(&[$($crate::codes::Code::$code),+])
            }
        }
    };
}
pub use crate::problems;
