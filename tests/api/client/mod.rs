//! The client crate against a system.

pub mod client_orders;
pub mod permits_and_webhooks;
