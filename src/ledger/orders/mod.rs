//! Orders: purchase rows, the orders made of them, cancellation, reading and searching, and the events of the order webhook.

pub mod cancel;
mod claim;
pub mod commit;
pub mod details;
pub mod fulfil;
pub mod group_expiry;
pub mod groups;
mod insert;
pub mod read;
pub mod search;
pub mod webhook_events;
