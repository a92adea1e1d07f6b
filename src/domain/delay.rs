//! The ladder of delay queues: a message waits in several of them, one after the other.

/// The delays that have a queue, in milliseconds, shortest first. A queue expires messages only at its head, so that
/// every distinct delay needs a queue of its own; any other delay is a sum of these.
pub const LADDER_MS: [i64; 9] = [1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000];

/// The delay to wait next when `remaining_ms` are left: the longest that fits, or else the shortest. A message that
/// comes out early waits again, so that the last wait ends less than a second late.
pub fn rung_for(remaining_ms: i64) -> i64 {
    LADDER_MS.into_iter().rev().find(|rung| *rung <= remaining_ms).unwrap_or(LADDER_MS[0])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_delay_that_fits_is_chosen() {
        assert_eq!(rung_for(900_000), 900_000);
        assert_eq!(rung_for(899_999), 300_000);
        assert_eq!(rung_for(30_000), 30_000);
        assert_eq!(rung_for(0), 1_000);
        assert_eq!(rung_for(-5), 1_000);
    }

    proptest! {
        #[test]
        fn successive_delays_end_within_a_second_of_the_deadline(due in 0_i64..10_000_000) {
            let (mut now, mut hops) = (0, 0);
            while now < due {
                now += rung_for(due - now);
                hops += 1;
            }
            prop_assert!(now - due < LADDER_MS[0] && hops < 40, "{now} for {due} in {hops}");
        }
    }
}
