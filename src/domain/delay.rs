//! The ladder of delay queues: which delays have a queue of their own.

/// The delays that have a queue of their own, in milliseconds, shortest first. A queue expires messages only at its
/// head, so every distinct delay needs its own; any other delay is made of these.
pub const LADDER_MS: [i64; 9] = [1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000];

/// The rung to wait on next when `remaining_ms` are left: the longest that is not too long, or else the shortest.
/// A message that comes out early is sent round again, so the last wait overshoots by less than a second.
pub fn rung_for(remaining_ms: i64) -> i64 {
    LADDER_MS.into_iter().rev().find(|rung| *rung <= remaining_ms).unwrap_or(LADDER_MS[0])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_deadline_itself_is_one_rung_where_there_is_one() {
        assert_eq!(rung_for(900_000), 900_000);
        assert_eq!(rung_for(899_999), 300_000);
        assert_eq!(rung_for(30_000), 30_000);
        assert_eq!(rung_for(0), 1_000);
        assert_eq!(rung_for(-5), 1_000);
    }

    proptest! {
        #[test]
        fn waiting_rung_by_rung_ends_within_a_second_of_the_deadline(due in 0_i64..10_000_000) {
            let (mut now, mut hops) = (0, 0);
            while now < due {
                now += rung_for(due - now);
                hops += 1;
            }
            prop_assert!(now - due < LADDER_MS[0] && hops < 40, "{now} for {due} in {hops}");
        }
    }
}
