//! Outflows: queues of requests that leave at a constant rate.

pub mod items;
pub mod parked;
pub mod slots;
