//! The use cases of the admin API: signing in, and seeing and changing flow control. `domain::account` decides what an
//! account may do; the audit log has every change and every refused attempt.

mod attempts;
mod device;
pub mod password;
pub mod policies;
pub mod session;

use std::sync::Arc;

use attempts::AttemptLimits;
use device::DeviceTokens;
use password::{Hasher, HashingError, HashingTerms};
use session::SessionTokens;

use crate::domain::account::{Account, Denied};
use crate::domain::ids::Invalid;
use crate::domain::limiter::WrongParameter;
use crate::domain::pressure::Pressure;
use crate::flow::FlowError;
use crate::gate::GateError;
use crate::gate::limiter::Limiter;
use crate::ledger::{Ledger, LedgerError};

/// Why a request of the admin API fails.
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
    #[error("too many attempts to sign in for one {limit}")]
    TooMany { limit: &'static str, max: i64, window_ms: u64, retry_ms: u64 },
    #[error("sign in first")]
    SignedOut,
    /// Another site may have sent the request.
    #[error("{0}")]
    Forged(&'static str),
    #[error("denied")]
    Denied(Denied),
    #[error("there is no such {0}")]
    Unknown(&'static str),
}

impl AdminError {
    /// Why the account was refused, for the audit log; `None` if the error is not a refusal.
    pub fn refusal(&self) -> Option<&'static str> {
        match self {
            Self::Forged(why) => Some(why),
            Self::Denied(Denied::Hidden) => Some("not granted"),
            Self::Denied(Denied::Forbidden) | Self::Flow(FlowError::NotOwned) => Some("not allowed"),
            Self::Flow(_)
            | Self::Ledger(_)
            | Self::Gate(_)
            | Self::Invalid(_)
            | Self::Malformed(_)
            | Self::Hashing(_)
            | Self::WrongCredentials
            | Self::TooMany { .. }
            | Self::SignedOut
            | Self::Unknown(_) => None,
        }
    }
}

/// Signs accounts in, and acts for them.
pub struct Console {
    ledger: Ledger,
    hasher: Hasher,
    attempts: AttemptLimits,
    sessions: SessionTokens,
    devices: DeviceTokens,
    terms: SessionTerms,
}

/// How long a session lasts, and how often sign-in may be attempted.
#[derive(Debug, Clone, Copy)]
pub struct SessionTerms {
    pub session_ms: i64,
    /// The longest time without a request.
    pub idle_ms: i64,
    pub login_limit: i64,
    pub login_window_ms: i64,
    pub hashing: HashingTerms,
}

/// The configuration does not allow signing in.
#[derive(Debug, thiserror::Error)]
pub enum WrongTerms {
    #[error("configuration: admin.login_limit, admin.login_window_ms: {0}")]
    Limit(#[from] WrongParameter),
    #[error(transparent)]
    Hashing(#[from] HashingError),
}

impl Console {
    /// Takes as long as one sign-in, because it computes the hash that unknown names are compared with. `secret` is the same
    /// at all instances.
    pub fn new(
        ledger: Ledger,
        limiter: Limiter,
        secret: &[u8; 32],
        pressure: &Arc<Pressure>,
        terms: SessionTerms,
    ) -> Result<Self, WrongTerms> {
        let attempts = AttemptLimits::new(limiter, terms.login_limit, terms.login_window_ms)?;
        let hasher = Hasher::start(terms.hashing, pressure)?;
        let (sessions, devices) = (SessionTokens::new(secret), DeviceTokens::new(secret));
        Ok(Self { ledger, hasher, attempts, sessions, devices, terms })
    }
}

fn admins_only(account: &Account) -> Result<(), AdminError> {
    if account.is_admin() { Ok(()) } else { Err(AdminError::Denied(Denied::Forbidden)) }
}
