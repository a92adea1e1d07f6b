//! Orders: purchase rows, orders made of them, cancellation, reading, and what the shop's webhook is to be told.

pub mod cancel;
pub mod commit;
pub mod fulfil;
pub mod read;
pub mod webhook_events;
