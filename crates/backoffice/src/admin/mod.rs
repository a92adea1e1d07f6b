//! The use cases of the console and of the admin API: signing in, and what people see and change there. `domain::account` decides
//! what an account may do; the audit log has every change and every refused attempt.

pub mod accounts;
mod attempts;
mod count_cache;
pub mod csv_file;
mod device;
pub mod drafts;
pub mod log;
pub mod money;
pub mod order_lines;
pub mod orders;
pub mod overview;
pub mod paging;
pub mod password;
pub mod policies;
pub mod products;
pub mod queues;
pub mod sale_form;
pub mod sales;
pub mod session;
pub mod shoppers;

use std::sync::Arc;

use attempts::AttemptLimits;
use count_cache::{CountCache, SALES_LISTED_MAX, SALES_SHOWN_MAX};
use device::DeviceTokens;
use password::{Hasher, HashingError};
use sales::LapsedLists;
use session::SessionTokens;
use tokio::sync::Semaphore;

use crate::picture::PictureError;
use seckill_buying::sale::{SaleError, Stores};
use seckill_config as config;
use seckill_delivery::outflow_changes::OutflowError;
use seckill_domain::account::{Account, Denial};
use seckill_domain::currency::Currency;
use seckill_domain::ids::Invalid;
use seckill_domain::limiter::WrongParameter;
use seckill_domain::live::LedgerFigures;
use seckill_domain::pressure::Pressure;
use seckill_domain::sale_result::SaleResult;
use seckill_flow::FlowError;
use seckill_money::PayError;
use seckill_postgres::{Ledger, LedgerError};
use seckill_redis::GateError;
use seckill_redis::limiter::Limiter;

#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminError {
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
    Denied(Denial),
    #[error("there is no such {0}")]
    Unknown(&'static str),
    #[error("{0}")]
    Conflict(String),
    /// The parts are valid, but contradictory.
    #[error("{0}")]
    Unworkable(Invalid),
    #[error(transparent)]
    Picture(#[from] PictureError),
    #[error(transparent)]
    Sale(#[from] SaleError),
    #[error("this Idempotency-Key was used for another request")]
    OtherRequest,
    #[error("{0}")]
    IllegalState(&'static str),
    #[error("too many {0} at once")]
    Busy(&'static str),
    #[error(transparent)]
    Pay(#[from] PayError),
}

impl From<OutflowError> for AdminError {
    fn from(error: OutflowError) -> Self {
        match error {
            OutflowError::Invalid(invalid) => invalid.into(),
            OutflowError::Ledger(error) => error.into(),
        }
    }
}

impl AdminError {
    /// Why the account was refused, for the audit log; `None` if the error is not a refusal.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        match self {
            Self::Forged(why) => Some(why),
            Self::Denied(Denial::Hidden) => Some("not granted"),
            Self::Denied(Denial::Forbidden) | Self::Flow(FlowError::NotOwned) => Some("not allowed"),
            _ => None,
        }
    }
}

/// The use cases of signed-in people.
pub struct Office {
    ledger: Ledger,
    /// The ledger and the gate, for the use cases of sales.
    stores: Stores,
    hasher: Hasher,
    attempts: AttemptLimits,
    sessions: SessionTokens,
    devices: DeviceTokens,
    session_ms: i64,
    idle_ms: i64,
    /// One export of orders at a time.
    exports: Arc<Semaphore>,
    /// One retry of many parked messages or items at a time.
    retries: Semaphore,
    /// Slow counts for the pages of sales.
    orders_of_sales: CountCache<LedgerFigures>,
    results_of_sales: CountCache<SaleResult>,
    lapsed_of_sales: CountCache<LapsedLists>,
    /// Of sales that are planned without one.
    pub(crate) currency: Currency,
}

#[derive(Debug, thiserror::Error)]
pub enum WrongSettings {
    #[error("configuration: admin.login_limit, admin.login_window_ms: {0}")]
    Limit(#[from] WrongParameter),
    #[error(transparent)]
    Hashing(#[from] HashingError),
}

impl Office {
    /// Takes the time of one sign-in: it computes the hash that unknown names are compared with. `secret` is the same
    /// at all instances.
    pub fn new(
        stores: Stores,
        limiter: Limiter,
        secret: &[u8; 32],
        pressure: &Arc<Pressure>,
        terms: &config::Admin,
        currency: Currency,
    ) -> Result<Self, WrongSettings> {
        let attempts = AttemptLimits::new(limiter, terms.login_limit, terms.login_window_ms.cast_signed())?;
        let hasher = Hasher::start(terms, pressure)?;
        let (sessions, devices) = (SessionTokens::new(secret), DeviceTokens::new(secret));
        Ok(Self {
            ledger: stores.ledger.clone(),
            stores,
            hasher,
            attempts,
            sessions,
            devices,
            session_ms: terms.session_ms.cast_signed(),
            idle_ms: terms.idle_ms.cast_signed(),
            exports: Arc::new(Semaphore::new(1)),
            retries: Semaphore::new(1),
            orders_of_sales: CountCache::new(SALES_SHOWN_MAX),
            results_of_sales: CountCache::new(SALES_LISTED_MAX),
            lapsed_of_sales: CountCache::new(SALES_SHOWN_MAX),
            currency,
        })
    }
}

fn found(is_found: bool, what: &'static str) -> Result<(), AdminError> {
    if is_found { Ok(()) } else { Err(AdminError::Unknown(what)) }
}

pub(crate) fn admins_only(account: &Account) -> Result<(), AdminError> {
    if account.is_admin() { Ok(()) } else { Err(AdminError::Denied(Denial::Forbidden)) }
}

/// Refuses accounts that may not learn who buyers are.
pub(crate) fn those_who_see_buyers_only(account: &Account) -> Result<(), AdminError> {
    if account.sees_buyers() { Ok(()) } else { Err(AdminError::Denied(Denial::Forbidden)) }
}

pub(crate) fn operators_only(account: &Account) -> Result<(), AdminError> {
    if account.may_operate() { Ok(()) } else { Err(AdminError::Denied(Denial::Forbidden)) }
}
