//! Flow control: permits for applications under changing policies, and alarms.

mod admitted;
pub mod alarm_watch;
pub mod api;
mod limiter_health;
mod local_limiter;
pub mod permit_request;
pub mod permits;
pub mod policy_cache;
pub mod policy_changes;
pub mod policy_counts;
mod policy_request;
mod policy_state;
mod refusal_cache;
pub mod threshold_controller;
mod unread_grant;
mod waiting_line;
mod waits;

use seckill_domain::ids::Invalid;
use seckill_domain::policy::WrongPolicy;
use seckill_postgres::LedgerError;
use seckill_redis::GateError;

#[derive(Debug, thiserror::Error)]
pub enum FlowError {
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Policy(#[from] WrongPolicy),
    /// A policy or application.
    #[error("there is no {0}")]
    Unknown(String),
    #[error("these applications have different policies of this name: change them one at a time")]
    Ambiguous,
    #[error("the policy belongs to an application whose policies you may not change")]
    NotOwned,
    #[error("application {0} exists already")]
    Exists(String),
    #[error("application {app} has an old token that is valid until {until}: wait, or rotate without an overlap")]
    TwoTokens { app: String, until: String },
}
