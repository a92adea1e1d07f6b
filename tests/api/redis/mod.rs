//! Redis: lost data, a cluster, locks, and the cost of calls.

pub mod call_costs;
pub mod locks_and_fences;
pub mod lost_keys;
pub mod own_redis;
pub mod redis_cluster;
pub mod redis_memory_loss;
pub mod redis_unchanged;
