//! A purchase to commit, and the result.

use seckill_domain::admission::Hold;
use seckill_domain::ids::{GroupId, OrderId, SaleId};
use seckill_domain::trace_context::TraceContext;

#[derive(Debug, Clone)]
pub struct Purchase {
    pub order: OrderId,
    pub sale: SaleId,
    pub user: String,
    pub units: i32,
    /// The buyer's address, as the limits use it, if it is still known.
    pub address: Option<String>,
    pub hold: Hold,
    /// All purchases with the same group are written into one row.
    pub group: GroupId,
    /// The trace's step that commits it, if it is traced. Then it is a group of one, because a message carries one trace.
    pub trace: Option<Box<TraceContext>>,
}

impl Purchase {
    pub(super) fn trace(&self) -> Option<&TraceContext> {
        self.trace.as_deref()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The group's row is committed, now or by an earlier try.
    Durable,
    /// The sale has another epoch: the hold may no longer exist.
    StaleEpoch,
    Unknown,
}
