//! The admin API's use cases: who signs in, and what people see and change of flow control. What an account may do is
//! decided in `domain::account`; every change, and every attempt that was refused, is in the audit log.

pub mod password;
pub mod policies;
pub mod session;

use crate::domain::account::Denied;
use crate::domain::ids::Invalid;
use crate::domain::limiter::{Algorithm, AlgorithmKind, Parameters, WrongParameter};
use crate::flow::FlowError;
use crate::gate::GateError;
use crate::gate::limiter::Limiter;
use crate::ledger::{Ledger, LedgerError};
use password::{Hasher, HashingError};

/// Why something is not done for a person.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error(transparent)]
    Flow(#[from] FlowError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("{0}")]
    Malformed(#[from] serde_json::Error),
    #[error(transparent)]
    Hashing(#[from] HashingError),
    #[error("name or password is wrong")]
    WrongCredentials,
    #[error("too many attempts to sign in, of one {limit}")]
    TooMany { limit: &'static str, max: i64, window_ms: u64, retry_ms: u64 },
    #[error("nobody is signed in")]
    SignedOut,
    /// It may be another site's doing.
    #[error("{0}")]
    Forged(&'static str),
    #[error("denied")]
    Denied(Denied),
    #[error("there is no such {0}")]
    Unknown(&'static str),
}

impl AdminError {
    /// Why an account was refused, where it was: for the audit log.
    pub fn refusal(&self) -> Option<&'static str> {
        match self {
            Self::Forged(why) => Some(why),
            Self::Denied(Denied::Hidden) => Some("not granted"),
            Self::Denied(Denied::Forbidden) | Self::Flow(FlowError::NotOwned) => Some("not allowed"),
            _ => None,
        }
    }
}

/// Where people sign in, and what they do then.
pub struct Console {
    ledger: Ledger,
    limiter: Limiter,
    hasher: Hasher,
    /// Attempts to sign in, of one account, and from one address.
    attempts: Algorithm,
    terms: SessionTerms,
}

/// How long people stay signed in, and how often they may try.
#[derive(Debug, Clone, Copy)]
pub struct SessionTerms {
    pub session_ms: i64,
    /// Without a request.
    pub idle_ms: i64,
    pub login_limit: i64,
    pub login_window_ms: i64,
}

/// Why there is no signing in with these terms.
#[derive(Debug, thiserror::Error)]
pub enum WrongTerms {
    #[error("configuration: admin.login_limit, admin.login_window_ms: {0}")]
    Limit(#[from] WrongParameter),
    #[error(transparent)]
    Hashing(#[from] HashingError),
}

impl Console {
    /// Takes as long as one sign-in: the hash that unknown names are compared with is made here.
    pub fn new(ledger: Ledger, limiter: Limiter, terms: SessionTerms) -> Result<Self, WrongTerms> {
        let (limit, window_ms) = (Some(terms.login_limit), Some(terms.login_window_ms));
        let parameters = Parameters { limit, window_ms, ..Parameters::default() };
        // Exact: a window's edge would give twice as many tries.
        let attempts = Algorithm::new(AlgorithmKind::SlidingLog, &parameters)?;
        Ok(Self { ledger, limiter, hasher: Hasher::new()?, attempts, terms })
    }
}
