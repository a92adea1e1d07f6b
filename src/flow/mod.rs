//! Flow control: permits for whoever may ask, under policies that live.

pub mod adapt;
pub mod alarm;
pub mod book;
pub mod drain;
pub mod figures;
pub mod guard;
mod live;
mod local;
mod memory;
pub mod permit;
pub mod policies;
pub mod shop;
pub mod tell;

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
