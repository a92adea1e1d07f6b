use super::*;
use crate::measured::Measured;

fn day() -> Day {
    Day {
        sales_a_day: 1_000,
        starts_a_day: 24,
        units_a_sale: 100,
        buyers_a_unit: 20.0,
        come_after_s: 10.0,
        paid: 0.8,
        pay_after_s: 60.0,
        pay_within_s: 900,
        channel_rate: 200,
    }
}

fn play(day: &Day, topology: &Topology) -> DayOutcome {
    let costs = Measured::sample().unwrap().costs().unwrap();
    let assumed = Assumed { network_us: 200.0, flush_us: 200.0, standby_us: 500.0, handshake_us: 0.0, fill: 0.5 };
    day.play(&costs, &assumed, topology, 5)
}

/// Each order is settled, and then paid or lapsed; no more are sold than there are units; also where a part is far too small.
#[test]
fn every_order_comes_to_its_end() {
    let large = Topology { serve: 4, postgres_cores: 16, ..Topology::smallest() };
    let small = Topology { serve_cores: 1, postgres_cores: 1, ..Topology::smallest() };
    for topology in [large, small] {
        let outcome = play(&day(), &topology);
        let orders = outcome.orders;
        assert!(orders <= 100_000.5 && orders > 90_000.0, "{outcome:?}");
        assert!((outcome.settled - orders).abs() < 1.0, "{outcome:?}");
        assert!((outcome.paid + outcome.lapsed - orders).abs() < 1.0, "{outcome:?}");
        assert!((outcome.paid / orders - 0.8).abs() < 0.01, "{outcome:?}");
        assert!((outcome.buyers / 2_000_000.0 - 1.0).abs() < 0.15, "{outcome:?}");
        assert!(outcome.usage.iter().all(|usage| usage.peak <= 1.000_001), "{outcome:?}");
    }
}

/// Payments never leave faster than their channel takes them, so they wait where all sales begin at once.
#[test]
fn payments_wait_for_their_channel() {
    let large = Topology { serve: 4, postgres_cores: 32, work: 4, ..Topology::smallest() };
    let spread = play(&day(), &large);
    let at_once = play(&Day { starts_a_day: 1, ..day() }, &large);
    assert!(spread.payments_wait_s < at_once.payments_wait_s, "{spread:?} {at_once:?}");
    assert!(at_once.payments_wait_s > 200.0, "80,000 payments at 200 a second: {at_once:?}");
}

/// Twice the sales are twice the work; and a day that a small machine cannot carry is carried by a larger one.
#[test]
fn work_grows_with_the_sales_and_waits_shrink_with_the_machines() {
    let large = Topology { serve: 8, postgres_cores: 64, work: 8, ..Topology::smallest() };
    let (once, twice) = (play(&day(), &large), play(&Day { sales_a_day: 2_000, ..day() }, &large));
    for part in [Part::Serve, Part::Redis, Part::Work] {
        let busy = |outcome: &DayOutcome| outcome.usage_of(part).unwrap().busy_s;
        assert!((1.7..2.3).contains(&(busy(&twice) / busy(&once))), "{part:?}: {once:?} {twice:?}");
    }
    let small = play(&day(), &Topology { postgres_cores: 1, ..large });
    assert!(small.unsettled_for_s > once.unsettled_for_s, "{small:?}");
    assert!(small.unsettled_most >= once.unsettled_most, "{small:?}");
}
