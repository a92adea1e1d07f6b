//! The story: a purchase on its way to an order, and what may happen to an order.

pub mod audit;
pub mod barred;
pub mod catalog;
pub mod clock;
pub mod counter;
pub mod deliver;
pub mod expire;
pub mod follow;
pub mod fulfil;
pub mod intake;
pub mod plan;
pub mod purchase;
pub mod reader;
pub mod reconcile;
pub mod refill;
pub mod release;
pub mod till;

pub use crate::domain::step::Step;
use crate::gate::{Gate, GateError};
use crate::ledger::{Ledger, LedgerError};
use crate::queue::QueueError;

/// Why a step of the story could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SaleError {
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error("no filter can be made: {0}")]
    Filter(&'static str),
    /// Another instance is at it.
    #[error("{0} is being done elsewhere")]
    Busy(&'static str),
}

/// What nearly every step needs.
#[derive(Clone)]
pub struct Shop {
    pub ledger: Ledger,
    pub gate: Gate,
}
