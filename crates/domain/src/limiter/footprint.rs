//! The memory of a limiter's key in Redis, and its lifetime. tests/api/redis/call_costs.rs compares this with Redis.

use super::{Algorithm, AlgorithmKind, SlotKey};

/// A key with a small value, without its name.
const KEY_BYTES: u64 = 250;
/// A key ends so long after its state has lost its meaning (limit_begin.lua).
const SLACK_MS: u64 = 5_000;

impl Algorithm {
    /// The bytes of a slot's key before the first grant.
    pub fn key_bytes(&self, slot: &SlotKey) -> u64 {
        // The application is in the hash tag, too; with a policy that is spread, all three are.
        let name = slot.app().len() + slot.policy().len() + slot.key().len();
        KEY_BYTES + 2 * name as u64
    }

    /// The bytes that one more grant adds, and the most grants that add some.
    pub fn grant_bytes(&self, permits: u32) -> (u64, u64) {
        let limit = self.max_permits().unsigned_abs();
        match self.kind() {
            AlgorithmKind::SlidingLog => (140, limit),
            AlgorithmKind::Concurrency => (if permits > 1 { 400 } else { 200 }, limit),
            AlgorithmKind::SlidingCounter => (24, 126),
            AlgorithmKind::FixedWindow | AlgorithmKind::TokenBucket | AlgorithmKind::LeakyBucket => (0, 0),
        }
    }

    /// How long a key is kept after a grant, at most.
    pub fn life_ms(&self) -> u64 {
        let given = self.parameters();
        let window_ms = given.window_ms.or(given.lease_ms).unwrap_or(0).unsigned_abs();
        let fills = match (given.capacity, given.rate) {
            // A bucket is kept until it is full, or empty.
            (Some(capacity), Some(rate)) => capacity.unsigned_abs().div_ceil(rate.unsigned_abs().max(1)).max(1),
            _ => 1,
        };
        // A sliding counter keeps one of its 125 parts longer.
        window_ms.saturating_mul(fills).saturating_add(window_ms / 125 + 1).saturating_add(SLACK_MS)
    }
}
