//! A purchase as it is committed, and what becomes of it.

use crate::domain::admission::Hold;
use crate::domain::ids::{GroupId, OrderId, SaleId};
use crate::domain::trace_context::TraceContext;

/// A purchase to be committed.
#[derive(Debug, Clone)]
pub struct Purchase {
    pub order: OrderId,
    pub sale: SaleId,
    pub user: String,
    pub units: i32,
    /// Where it came from, as the limits see it, if that is still known.
    pub address: Option<String>,
    pub hold: Hold,
    /// The group whose row it is written into, with all others that name it.
    pub group: GroupId,
    /// The step that writes it, if it is traced. Then it is a group of one, because a message carries one trace.
    pub trace: Option<Box<TraceContext>>,
}

impl Purchase {
    pub(super) fn trace(&self) -> Option<&TraceContext> {
        self.trace.as_deref()
    }
}

/// What became of a purchase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committed {
    /// The row of its group is committed, now or since an earlier try.
    Durable,
    /// The sale has another epoch: the hold may no longer exist.
    StaleEpoch,
    /// The commit failed, or its outcome is unknown.
    Unknown,
}
