use super::*;
use crate::measured::Measured;

/// A rush of a second on machines of their own, large enough for 20,000 buyers a second.
fn rush(per_second: f64, units: u64) -> Rush {
    Rush {
        costs: Measured::sample().unwrap().costs().unwrap(),
        assumed: Assumed { network_us: 200.0, flush_us: 200.0, standby_us: 500.0, handshake_us: 0.0, fill: 0.5 },
        topology: Topology { balancers: 1, serve: 2, postgres_cores: 4, ..Topology::smallest() },
        one_machine_cores: None,
        crowd: Crowd::Open { per_second, seconds: 1.0 },
        request: Request::Purchase,
        sale: Sale { units, memory_ms: 500.0, unsettled: 0 },
        seed: 1,
    }
}

fn is_conserved(outcome: &Outcome) -> bool {
    let told = outcome.accepted + outcome.sold_out_from_memory + outcome.sold_out_by_redis + outcome.unavailable;
    outcome.arrivals == told + outcome.hello
}

/// Every buyer has one answer, and no unit is sold twice or kept: with one shard and several, with and without overload, and
/// behind a synchronous standby.
#[test]
fn every_arrival_is_answered_and_every_unit_sold_once() {
    for (per_second, units, shards, redis) in
        [(5_000.0, 1_000, 1, 1), (20_000.0, 3_000, 8, 3), (20_000.0, 0, 4, 2), (400_000.0, 2_000, 1, 1)]
    {
        let mut rush = rush(per_second, units);
        (rush.topology.shards, rush.topology.redis) = (shards, redis);
        let outcome = rush.play();
        assert!(is_conserved(&outcome), "{outcome:?}");
        assert!((outcome.arrivals as f64 / per_second - 1.0).abs() < 0.05, "{outcome:?}");
        // More buyers came than there are units. Those who were shed took no unit.
        assert_eq!(outcome.accepted, units, "{outcome:?}");
        assert_eq!(outcome.settled, units, "{outcome:?}");
        assert!(outcome.usage.iter().all(|usage| usage.mean <= 1.01 && usage.peak <= 1.3), "{outcome:?}");
    }
}

/// Where there are more units than buyers, all buy, although their shards have different numbers of buyers.
#[test]
fn nobody_hears_sold_out_while_units_are_left() {
    let mut rush = rush(5_000.0, 0);
    rush.topology.shards = 8;
    rush.sale.units = 10_000_000;
    let outcome = rush.play();
    assert_eq!(outcome.accepted, outcome.arrivals, "{outcome:?}");
    // The last units of other shards are found, too: one unit a shard and many buyers.
    rush.sale.units = 8;
    let outcome = rush.play();
    assert_eq!((outcome.accepted, outcome.unavailable), (8, 0), "{outcome:?}");
}

/// The same seed gives the same outcome, and another seed another one.
#[test]
fn a_seed_decides_everything() {
    let play = |seed| Rush { seed, ..rush(20_000.0, 5_000) }.play();
    assert_eq!(play(7), play(7));
    assert_ne!(play(7), play(8));
}

/// More buyers wait no shorter; and more machines serve no fewer.
#[test]
fn more_load_is_no_faster_and_more_machines_are_no_slower() {
    let outcomes = [5_000.0, 20_000.0, 60_000.0].map(|per_second| rush(per_second, u64::MAX).play());
    for two in outcomes.windows(2) {
        let (less, more) = (&two[0], &two[1]);
        assert!(more.winners.p99_ms >= less.winners.p99_ms * 0.95, "{less:?} {more:?}");
        let busy = |outcome: &Outcome, part| outcome.usage_of(part).unwrap().mean;
        assert!(busy(more, Part::Redis) >= busy(less, Part::Redis) * 0.95, "{less:?} {more:?}");
    }
    let served = [(1, 1), (4, 4), (16, 8)].map(|(serve, redis)| {
        let mut rush = rush(120_000.0, 40_000);
        (rush.topology.serve, rush.topology.redis, rush.topology.shards) = (serve, redis, redis);
        rush.topology.balancers = 16;
        let outcome = rush.play();
        outcome.arrivals - outcome.unavailable
    });
    assert!(served.is_sorted(), "{served:?}");
}

/// Below any overload, throughput is what arrives, parts are as busy as their costs say (the utilisation law: Peter Denning and
/// Jeffrey Buzen, "The Operational Analysis of Queueing Network Models", Computing Surveys 10, 1978), and a standby makes winners
/// wait for as long as it takes.
#[test]
fn a_quiet_rush_is_as_the_laws_say() {
    let near = rush(4_000.0, u64::MAX);
    let outcome = near.play();
    assert!((outcome.answers_a_second / 4_000.0 - 1.0).abs() < 0.1, "{outcome:?}");
    let due = outcome.answers_a_second * near.costs.bought_us / 1e6 / f64::from(near.topology.cores(Part::Serve));
    let seen = outcome.usage_of(Part::Serve).unwrap().mean;
    assert!((seen / due - 1.0).abs() < 0.05, "`serve` is busy {seen}, by its costs {due}");
    let far = Rush { assumed: Assumed { standby_us: 20_500.0, ..near.assumed }, ..near }.play();
    let more_ms = far.winners.p50_ms - outcome.winners.p50_ms;
    // Those who come during a commit wait for the next one, too.
    assert!((18.0..45.0).contains(&more_ms), "{more_ms} ms more for 20 ms of standby");
}

/// A part that is too small is found.
#[test]
fn what_is_too_small_bends_first() {
    let mut small = rush(60_000.0, 0);
    small.topology = Topology { balancers: 8, serve: 1, serve_cores: 1, redis: 4, ..small.topology };
    assert_eq!(small.play().bends_first().unwrap().part, Part::Serve);
    let mut small = rush(60_000.0, u64::MAX);
    small.topology = Topology { balancers: 8, serve: 16, redis: 16, shards: 16, postgres_cores: 1, ..small.topology };
    assert_eq!(small.play().bends_first().unwrap().part, Part::Postgres);
}

/// Workers settle after the rush what they could not settle beside it, and at no more than their processors and the sale's row
/// allow.
#[test]
fn settling_is_bounded_by_processors_and_by_the_row() {
    let mut rest = rush(0.0, 0);
    (rest.sale.unsettled, rest.crowd) = (50_000, Crowd::Open { per_second: 0.0, seconds: 0.0 });
    (rest.topology.work, rest.topology.work_cores) = (8, 2);
    rest.topology.postgres_cores = 64;
    let fast = rest.play();
    assert_eq!((fast.settled, fast.arrivals), (50_000, 0));
    // 16 loops of 250 orders, each 29 ms in PostgreSQL.
    assert!((40_000.0..140_000.0).contains(&fast.settled_a_second), "{fast:?}");
    rest.assumed.standby_us = 50_000.0;
    let slow = rest.play();
    // The row is free every 50 ms: 250 orders each.
    assert!((3_000.0..5_100.0).contains(&slow.settled_a_second), "{slow:?}");
}
