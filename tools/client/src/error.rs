//! Errors of calls.

use std::fmt;
use std::time::Duration;

use reqwest::StatusCode;
use serde::Deserialize;
use strum::{Display, EnumString};
use uuid::Uuid;

/// Why a call has no result.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service refused the call and gave a reason.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// There is no connection; nothing was sent.
    #[error("no connection: {0}")]
    Connect(String),
    /// No answer came within this time. Whether the call took effect is unknown.
    #[error("no answer within {} ms", .0.as_millis())]
    TimeOut(Duration),
    /// The connection broke before the whole answer had come. Whether the call took effect is unknown.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The answer is not from this API: the address belongs to another server or version. The call may have taken effect.
    #[error("the answer is not one of this API: {0}")]
    Unreadable(String),
    /// After all attempts it is unknown whether the purchase was made. Repeat it later with the same [`crate::Purchase`].
    #[error("after {attempts} attempts the result is still unknown: {last}")]
    Undecided { attempts: u32, last: Box<Error> },
    /// The caller's own value is not valid; nothing was sent.
    #[error("{what} {why}")]
    Invalid {
        /// The value, such as `the address`.
        what: &'static str,
        why: String,
    },
}

impl Error {
    pub(crate) fn invalid(what: &'static str, why: impl fmt::Display) -> Self {
        Self::Invalid { what, why: why.to_string() }
    }

    /// The service's problem, if there is one. For [`Error::Undecided`], that of the last attempt.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            Self::Undecided { last, .. } => last.problem(),
            Self::Connect(_) | Self::TimeOut(_) | Self::Lost(_) | Self::Unreadable(_) | Self::Invalid { .. } => None,
        }
    }

    /// The code of the service's problem, if there is one.
    pub fn code(&self) -> Option<&Code> {
        self.problem().map(|problem| &problem.code)
    }

    /// How long to wait before the call is repeated, if the service says so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.problem().and_then(|problem| problem.retry_after)
    }

    /// Whether the same call may succeed later. This includes calls that may have taken effect: repeat a purchase with the same
    /// [`crate::Purchase`], and read an order before you repeat a step of it.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Problem(problem) => problem.may_pass() || problem.code == Code::OrderNotReady,
            Self::Connect(_) | Self::TimeOut(_) | Self::Lost(_) | Self::Undecided { .. } => true,
            Self::Unreadable(_) | Self::Invalid { .. } => false,
        }
    }

    /// Whether the service could not be asked, or did not decide.
    pub(crate) fn is_away(&self) -> bool {
        match self {
            Self::Problem(problem) => problem.may_pass(),
            Self::Connect(_) | Self::TimeOut(_) | Self::Lost(_) => true,
            Self::Unreadable(_) | Self::Undecided { .. } | Self::Invalid { .. } => false,
        }
    }
}

/// A refusal of the service: problem details (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub status: u16,
    /// The error, for programs.
    pub code: Code,
    /// The error, for people.
    pub title: String,
    pub detail: Option<String>,
    /// From the header `Retry-After`; at most a day.
    pub retry_after: Option<Duration>,
    /// With [`Code::AlreadyPurchased`]: the buyer's newest order of the sale.
    pub order_id: Option<Uuid>,
    /// With [`Code::NotStarted`]: when the sale starts, in milliseconds since the epoch.
    pub starts_at_ms: Option<i64>,
    /// With [`Code::NotStarted`] of a challenge: when challenges become available, in milliseconds since the epoch.
    pub opens_at_ms: Option<i64>,
    /// With [`Code::LevelTooLow`]: the lowest level that may buy.
    pub min_level: Option<i64>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.status, self.code, self.title)?;
        self.detail.as_ref().map_or(Ok(()), |detail| write!(f, " ({detail})"))
    }
}

impl std::error::Error for Problem {}

/// The members of a problem document that are read.
#[derive(Debug, Default, Deserialize)]
struct Document {
    code: Option<String>,
    title: Option<String>,
    detail: Option<String>,
    order_id: Option<Uuid>,
    starts_at_ms: Option<i64>,
    opens_at_ms: Option<i64>,
    min_level: Option<i64>,
}

impl Problem {
    /// Reads an answer with an error status. A proxy's answer, which is not a problem document, has the code `no-code`.
    pub(crate) fn read(status: StatusCode, retry_after: Option<Duration>, body: &[u8]) -> Self {
        let document: Document = serde_json::from_slice(body).unwrap_or_default();
        let code = document.code.unwrap_or_else(|| "no-code".to_owned());
        let title = document.title.unwrap_or_else(|| status.canonical_reason().unwrap_or("no reason").to_owned());
        Self {
            status: status.as_u16(),
            code: code.parse().unwrap_or(Code::Other(code)),
            title,
            detail: document.detail,
            retry_after,
            order_id: document.order_id,
            starts_at_ms: document.starts_at_ms,
            opens_at_ms: document.opens_at_ms,
            min_level: document.min_level,
        }
    }

    /// Whether the cause is temporary: too slow, too many requests, or the service cannot answer now.
    fn may_pass(&self) -> bool {
        matches!(self.status, 408 | 429 | 500..)
    }
}

/// The error. docs/errors.md describes each code, and how a caller should respond.
#[derive(Debug, Clone, PartialEq, Eq, Display, EnumString)]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
pub enum Code {
    InvalidRequest,
    Unauthenticated,
    Forbidden,
    NotStarted,
    Ended,
    WrongKey,
    LevelTooLow,
    NotAllowed,
    PassInvalid,
    ChallengeFailed,
    NoChallenge,
    UnknownSale,
    UnknownOrder,
    NotFound,
    MethodNotAllowed,
    Misdirected,
    TooSlow,
    SoldOut,
    AlreadyPurchased,
    OrderNotReady,
    IllegalState,
    BodyTooLarge,
    IdempotencyMismatch,
    QuotaExceeded,
    TemporarilyUnavailable,
    /// A code that this version does not know; `no-code` for an answer without one, such as a proxy's.
    #[strum(default)]
    Other(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proxy that cannot reach the service answers in HTML: that is still worth a retry.
    #[test]
    fn an_answer_that_is_no_problem_document_has_its_status() {
        let problem = Problem::read(StatusCode::BAD_GATEWAY, None, b"<html>");
        assert_eq!((problem.status, problem.code.to_string().as_str()), (502, "no-code"));
        assert!(Error::Problem(problem.into()).is_away());
    }

    /// Every code for buyers and applications is in the enum, spelt as the service spells it.
    #[test]
    fn the_codes_of_the_service_are_known() {
        let table = include_str!("../../../docs/errors.md");
        let mut known = 0;
        for row in table.lines().filter(|line| line.starts_with("| 4") || line.starts_with("| 5")) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            if cells[3].starts_with("Admin API") || cells[3].starts_with("A payment channel") {
                continue;
            }
            let text = cells[2].trim_matches('`');
            let code: Code = text.parse().unwrap();
            assert!(!matches!(code, Code::Other(_)), "{text} of docs/errors.md is not in the enum");
            assert_eq!(code.to_string(), text);
            known += 1;
        }
        assert!(known >= 15, "the table is not where it is looked for");
        assert_eq!("brand-new".parse(), Ok(Code::Other("brand-new".to_owned())));
    }
}
