//! The delay queues: a message waits in several of them, one after the other.

/// The base of the ladder's number system.
const BASE: i64 = 20;
const DECADES: u32 = 5;
const SECOND_MS: i64 = 1_000;

/// The delays that have a queue, shortest first: 1 to 19 seconds, 1 to 19 times 20 seconds, and so on up to 19 times 160,000 seconds.
/// A queue expires messages only at its head, so each delay has its own queue. Any other delay is a sum of these.
pub fn ladder_ms() -> impl Iterator<Item = i64> {
    (0..DECADES).flat_map(|decade| (1..BASE).map(move |digit| digit * BASE.pow(decade) * SECOND_MS))
}

/// The next delay when `remaining_ms` are left: in base 20, the leading digit of the seconds left, rounded up. Each wait removes a digit,
/// so a message makes at most five hops within 37 days, and is less than a second late.
pub fn rung_for(remaining_ms: i64) -> i64 {
    let seconds = remaining_ms.max(1).unsigned_abs().div_ceil(SECOND_MS.unsigned_abs()).cast_signed();
    let decade = (1..DECADES).rev().find(|decade| BASE.pow(*decade) <= seconds).unwrap_or(0);
    let digit = (seconds / BASE.pow(decade)).min(BASE - 1);
    digit * BASE.pow(decade) * SECOND_MS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_leading_digit_is_waited_for_first() {
        let remaining = [900_000, 99_100, 19_001, 19_000, 0, -5, i64::MAX];
        assert_eq!(remaining.map(rung_for), [800_000, 100_000, 20_000, 19_000, 1_000, 1_000, 19 * 160_000_000]);
        assert!(ladder_ms().is_sorted());
        assert!(ladder_ms().all(|rung_ms| rung_for(rung_ms) == rung_ms));
    }

    proptest! {
        /// The longest time to pay is 30 days, and an order may wait for a payment beyond it.
        #[test]
        fn five_hops_end_within_a_second_of_the_deadline(
            due in 0_i64..31 * 86_400_000, late in proptest::collection::vec(0_i64..900, 5),
        ) {
            let (mut now, mut hops) = (0, 0);
            while now < due {
                prop_assert!(hops < 5, "{now} of {due} after {hops} hops");
                let rung = rung_for(due - now);
                prop_assert!(ladder_ms().any(|known| known == rung));
                now += rung + late[hops];
                hops += 1;
            }
            prop_assert!(now - due < SECOND_MS + late.iter().max().unwrap(), "{now} for {due} in {hops}");
        }
    }
}
