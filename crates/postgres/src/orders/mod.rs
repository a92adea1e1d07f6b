//! Orders: groups of purchases, their orders, cancellation, reading and search, and the events of the order webhook.

pub mod cancel;
mod commit;
pub mod committer;
pub mod details;
pub mod expiry;
pub mod groups;
mod insert;
pub mod listed;
mod money;
pub mod one;
pub mod purchase;
pub mod read;
pub mod search;
pub mod webhook_events;
