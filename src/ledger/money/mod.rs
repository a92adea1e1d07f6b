//! Money: payments, refunds, what channels report about them, and the journal of every movement.

pub mod channel_reports;
mod journal;
pub mod payment_dispatch;
pub mod payment_status;
pub mod payments;
pub mod refunds;
