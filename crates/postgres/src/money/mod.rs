//! Money: payments, refunds, reports of channels, the journal of every movement, and lists for people.

pub mod channel_reports;
pub mod lists;
pub mod payment_dispatch;
pub mod payment_status;
pub mod payments;
pub mod refunds;
