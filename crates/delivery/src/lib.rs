//! Deliveries to other systems: requests at a constant rate (outflows), order webhooks, and alarm webhooks.

pub mod alarm_webhook;
pub mod order_webhooks;
pub mod outflow_changes;
pub mod outflow_drain;
