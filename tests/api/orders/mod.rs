//! Orders after the purchase: messages, payments, expiry, cancellations, webhooks.

pub mod auditor_findings;
pub mod broker_waits;
pub mod buyer_erasure;
pub mod cancellations;
pub mod currencies_and_free_orders;
pub mod expiry_and_retries;
pub mod group_expiry;
pub mod order_event_streams;
pub mod order_webhooks;
pub mod payments_and_callbacks;
pub mod relay_resends;
