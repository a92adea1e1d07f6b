//! The story: a purchase on its way to an order, and what may happen to an order.

pub mod audit;
pub mod barred;
pub mod catalog;
pub mod clock;
pub mod counter;
pub mod deliver;
pub mod expire;
pub mod fulfil;
pub mod intake;
pub mod plan;
pub mod purchase;
pub mod reader;
pub mod reconcile;
pub mod refill;
pub mod release;
pub mod till;

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

/// Whether a bounded step has left something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There may be more: come again at once.
    More,
    /// Nothing more for now.
    Idle,
}

impl Step {
    /// A batch that was full may have been cut short.
    pub const fn after(done: usize, batch_max: usize) -> Self {
        if done >= batch_max { Self::More } else { Self::Idle }
    }
}
