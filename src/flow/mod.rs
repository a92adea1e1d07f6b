//! Flow control: permits for whoever may ask, under policies that live.

pub mod alarm_watch;
pub mod alarm_webhook;
mod local_limiter;
pub mod order_webhooks;
pub mod outflow_drain;
pub mod permit_request;
pub mod permits;
pub mod policy_cache;
pub mod policy_changes;
pub mod policy_counts;
mod policy_state;
mod refusal_cache;
pub mod threshold_controller;

use crate::domain::ids::Invalid;
use crate::domain::policy::WrongPolicy;
use crate::gate::GateError;
use crate::ledger::LedgerError;

/// Why a step of flow control could not be taken.
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
    /// A policy, or an application, that is not there.
    #[error("there is no {0}")]
    Unknown(String),
    /// One change cannot be for several policies.
    #[error("these applications have different policies of this name: change them one at a time")]
    Ambiguous,
    /// A policy is changed by who may change the policies of all of its applications.
    #[error("not all of its applications are yours to change")]
    NotOwned,
    #[error("there is an application {0} already")]
    Exists(String),
}
