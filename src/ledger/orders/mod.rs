//! Orders: purchase rows, the orders made of them, cancellation, reading and searching, and the events of the order webhook.

pub mod cancel;
mod claim;
mod commit;
pub mod committer;
pub mod details;
pub mod fulfil;
pub mod group_expiry;
pub mod groups;
mod insert;
pub mod purchase;
pub mod read;
pub mod search;
pub mod webhook_events;
