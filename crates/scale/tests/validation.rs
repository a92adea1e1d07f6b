//! The simulation against a stored run of the bench.

use seckill_scale::check::{self, compare};
use seckill_scale::measured::Measured;

// A looser bound would show little.
const _: () = assert!(check::THROUGHPUT_WITHIN <= 1.5 && check::MEDIAN_WITHIN <= 2.5);

/// Bought, sold out, refused and settled a second come within the stated factor of what was measured, and the median waits too.
#[test]
fn the_simulation_is_near_what_was_measured() {
    let compared = compare(&Measured::sample().unwrap(), 1).unwrap();
    assert_eq!(compared.len(), 9, "four cases by two figures, and settling: {compared:#?}");
    for one in &compared {
        assert!(one.holds(), "by a factor of {:.2}: {one:#?}", one.factor());
    }
    // The order of the cases is right as well: what is cheaper is served more often.
    let rates: Vec<f64> = compared.iter().filter(|one| one.unit == "a second").map(|one| one.simulated).collect();
    assert!(rates.is_sorted_by(|a, b| a > b), "{rates:?}");
}

/// A simulation that is fed other costs comes to other figures: the comparison can fail.
#[test]
fn wrong_costs_are_noticed() {
    let mut document = serde_json::json!({ "cases": {} });
    let sample: serde_json::Value = serde_json::from_str(include_str!("../samples/speed.json")).unwrap();
    document["cases"] = sample["cases"].clone();
    document["cases"]["winners"]["cpu_us"]["postgres"]["median"] = 90.0.into();
    document["cases"]["winners"]["few"]["cpu_us"]["postgres"]["median"] = 110.0.into();
    let serde_json::Value::Object(parts) = document else { panic!() };
    let compared = compare(&Measured::from_parts(parts).unwrap(), 1).unwrap();
    assert!(compared.iter().any(|one| one.what == "winners" && !one.holds()), "{compared:#?}");
}
