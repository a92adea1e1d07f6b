//! Flow control: permits, policies, callers, alarms, gateways.

pub mod address_keys;
pub mod callers_apart;
pub mod gateway;
pub mod greedy_callers;
pub mod permits_and_policies;
pub mod thresholds_and_alarms;
