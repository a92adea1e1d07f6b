//! The story: a purchase on its way to an order, and what may happen to an order.

pub mod audit;
pub mod buyer_orders;
pub mod catalog;
pub mod confirmer;
pub mod database_clock;
pub mod document_reader;
pub mod expire;
pub mod fulfil;
pub mod manage;
pub mod order_streams;
pub mod purchase;
pub mod reconcile;
pub mod refill;
pub mod refusal_cache;
pub mod relay;
pub mod release;
pub mod sold_out_view;
pub mod thread_state;

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
pub struct Stores {
    pub ledger: Ledger,
    pub gate: Gate,
}
