//! Use cases of buyers, on the worker threads: challenges, purchases, orders, and reads of a sale.

pub mod buyer_orders;
pub mod cancellations;
pub mod catalog;
pub mod challenges;
pub mod confirmer;
pub mod document_reader;
mod id_filter;
pub mod load_shedder;
pub mod order_reader;
pub mod order_streams;
pub mod purchase;
pub mod refusal_cache;
pub mod thread_state;
pub mod wait_probe;
pub mod winners;

pub use seckill_domain::step::Step;
use seckill_postgres::{Ledger, LedgerError};
use seckill_rabbitmq::QueueError;
use seckill_redis::{Gate, GateError};

#[derive(Debug, thiserror::Error)]
pub enum SaleError {
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error("the filter of ids cannot be built: {0}")]
    Filter(&'static str),
    /// Too many requests of one kind, or no answer from PostgreSQL.
    #[error("too many requests for {0}, or PostgreSQL does not answer them")]
    Overloaded(&'static str),
    /// Another task does it, or it took too long.
    #[error("busy: {0}")]
    Busy(&'static str),
    /// Another instance has refilled the sale meanwhile.
    #[error("another refill has taken over")]
    Overtaken,
}

impl SaleError {
    /// Whether a server could not be reached: any other request would have failed too.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Gate(error) => error.is_outage(),
            Self::Ledger(error) => error.is_outage(),
            Self::Queue(_) => true,
            Self::Filter(_) | Self::Overloaded(_) | Self::Busy(_) | Self::Overtaken => false,
        }
    }

    /// Whether another transaction keeps a row of PostgreSQL locked.
    pub(crate) fn is_locked(&self) -> bool {
        matches!(self, Self::Ledger(LedgerError::Locked))
    }
}

#[derive(Clone)]
pub struct Stores {
    pub ledger: Ledger,
    pub gate: Gate,
}
