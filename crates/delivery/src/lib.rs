//! What is sent to others: requests at a constant rate (outflows), order webhooks, and the webhooks of alarms.

pub mod alarm_webhook;
pub mod order_webhooks;
pub mod outflow_changes;
pub mod outflow_drain;
