//! The simulated shedder against the service's own.

use std::time::Duration;

use seckill::domain::shedding::{ShedLimit, TICK};
use seckill_scale::random::Random;
use seckill_scale::rush::shedder::{Shedder, TICK_S, WAIT_TARGET_S};

/// Over crowds of changing size, both shed the same purchases.
#[test]
fn the_simulated_shedder_does_what_the_services_own_does() {
    assert_eq!((TICK.as_secs_f64(), Duration::from_secs_f64(WAIT_TARGET_S)), (TICK_S, Duration::from_millis(100)));
    let (mut own, mut simulated) = (ShedLimit::new(Duration::from_secs_f64(WAIT_TARGET_S)), Shedder::default());
    let (mut random, mut under_way, mut full) = (Random::new(3), 0_u32, 0_u32);
    for tick in 0..20_000 {
        // Every ten seconds another crowd; what is answered in a tick changes, too.
        let (most, answers) = (random.below(if tick / 500 % 2 == 0 { 40 } else { 400 }), random.below(120));
        for _ in 0..most {
            assert_eq!(own.is_full(under_way), simulated.is_full(), "tick {tick}, {under_way} under way");
            if simulated.is_full() {
                full += 1;
            } else {
                simulated.begin();
                under_way += 1;
            }
        }
        let answered = answers.min(under_way);
        (0..answered).for_each(|_| simulated.end());
        under_way -= answered;
        own.adjust(under_way, answered, Duration::ZERO, TICK);
        simulated.tick(TICK_S);
    }
    assert!(full > 1000, "{full} were shed: too few to compare");
}
