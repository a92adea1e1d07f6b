//! Pauses between attempts.

/// Exponential backoff with full jitter (Brooker, "Exponential Backoff And Jitter"): after `attempts` failures, a
/// point between half of and the whole of `base_ms` doubled that often, capped. `unit` is a random number in 0..1.
pub fn backoff_ms(attempts: u32, base_ms: u64, cap_ms: u64, unit: f64) -> u64 {
    let doubled = base_ms.saturating_mul(1_u64 << attempts.saturating_sub(1).min(32));
    let whole = doubled.min(cap_ms);
    whole / 2 + ((whole / 2) as f64 * unit.clamp(0.0, 1.0)) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn backoff_grows_and_stays_under_its_cap(attempts in 1_u32..100, unit in 0.0..1.0_f64) {
            let wait = backoff_ms(attempts, 100, 60_000, unit);
            prop_assert!((50..=60_000).contains(&wait));
            prop_assert!(backoff_ms(attempts + 1, 100, 60_000, unit) >= wait);
        }
    }
}
