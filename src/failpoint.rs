//! Places where a test can make the process die: on every line of the pipeline where a death matters.
//!
//! Built with the feature `failpoints` (never in a release), `FAILPOINTS='relay.published=20*off->return'` aborts the
//! process when the place is passed for the 21st time; see the `fail` crate for the grammar. Without the feature the
//! macro is nothing.

/// Every place there is, in the order in which a purchase meets them; then an outflow's, money's, and the shop's webhook's.
pub const PLACES: [&str; 40] = [
    "purchase.reserved",
    "purchase.committed",
    "commit.before",
    "commit.after",
    "confirm.before",
    "relay.claimed",
    "relay.published",
    "relay.settled",
    "fulfil.before_commit",
    "fulfil.after_commit",
    "expire.before_commit",
    "expire.after_commit",
    "release.done",
    "release.settled",
    "reconcile.inserted",
    "refill.closed",
    "refill.raised",
    "refill.read",
    "refill.begun",
    "refill.put",
    "refill.opened",
    "refill.recorded",
    "refill.loaded",
    "outflow.claimed",
    "outflow.sent",
    "outflow.settled",
    "pay.before_commit",
    "pay.after_commit",
    "pay.claimed",
    "pay.sent",
    "pay.settled",
    "status.answered",
    "money.before_commit",
    "money.after_commit",
    "refund.before_commit",
    "refund.after_commit",
    "refunded.before_commit",
    "refunded.after_commit",
    "webhook.taken",
    "webhook.answered",
];

/// Aborts the process here, where FAILPOINTS says so.
#[macro_export]
macro_rules! die_at {
    ($place:literal) => {
        #[cfg(feature = "failpoints")]
        fail::fail_point!($place, |_| std::process::abort());
    };
}

/// Takes in what FAILPOINTS says; without the feature, nothing.
pub fn set_up() {
    #[cfg(feature = "failpoints")]
    std::mem::forget(fail::FailScenario::setup());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All code below a folder but this file's, in one text.
    fn sources(folder: &std::path::Path) -> String {
        let mut code = String::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                code += &sources(&path);
            } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("failpoint.rs") {
                code += &std::fs::read_to_string(&path).unwrap();
            }
        }
        code
    }

    #[test]
    fn every_place_is_passed_once_in_the_code_and_listed() {
        let code = sources(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")));
        for place in PLACES {
            assert_eq!(code.matches(&format!("die_at!(\"{place}\")")).count(), 1, "{place}");
        }
        assert_eq!(code.matches("die_at!(").count(), PLACES.len());
    }
}
