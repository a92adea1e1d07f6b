//! Failpoints: places in the code where a test can make the process die.
//!
//! With the feature `failpoints` (never in a release), `FAILPOINTS='relay.published=20*off->return'` aborts the process when it passes this
//! place for the 21st time. The `fail` crate has the grammar. Without the feature, the macro does nothing.

/// All places: first the path of a purchase, in order; then outflows, payments and refunds, and order webhooks.
pub const PLACES: [&str; 61] = [
    "purchase.reserved",
    "purchase.committed",
    "loan.written",
    "loan.held",
    "loan.refused",
    "commit.before",
    "commit.after",
    "commit.fallback",
    "confirm.before",
    "relay.claimed",
    "relay.sending",
    "relay.leased",
    "relay.published",
    "relay.settled",
    "fulfil.before_commit",
    "fulfil.after_commit",
    "group.before_commit",
    "group.after_commit",
    "group.split_before",
    "group.split_after",
    "cancel.before_commit",
    "cancel.after_commit",
    "expire.before_commit",
    "expire.after_commit",
    "expire.round_again",
    "release.at_lender",
    "release.done",
    "release.settled",
    "reconcile.inserted",
    "reconcile.barred",
    "refill.closed",
    "refill.raised",
    "refill.read",
    "refill.begun",
    "refill.put",
    "refill.shard_opened",
    "refill.recorded",
    "refill.opened",
    "remove.deleted",
    "change.stopped",
    "change.before_commit",
    "change.committed",
    "outflow.claimed",
    "outflow.sent",
    "outflow.settled",
    "pay.before_commit",
    "pay.after_commit",
    "pay.claimed",
    "pay.sent",
    "pay.settled",
    "status.answered",
    "paid.before_commit",
    "paid.after_commit",
    "money.before_commit",
    "money.after_commit",
    "refund.before_commit",
    "refund.after_commit",
    "refunded.before_commit",
    "refunded.after_commit",
    "webhook.taken",
    "webhook.answered",
];

/// Aborts the process here if FAILPOINTS says so.
#[macro_export]
macro_rules! die_at {
    ($place:literal) => {
        $crate::failpoint::pass($place);
    };
}

/// Does nothing without the feature.
#[inline]
pub fn pass(_place: &str) {
    #[cfg(feature = "failpoints")]
    fail::fail_point!(_place, |_| std::process::abort());
}

/// Reads FAILPOINTS. Does nothing without the feature.
pub fn set_up() {
    #[cfg(feature = "failpoints")]
    std::mem::forget(fail::FailScenario::setup());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The source of all files below a folder, except this one.
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
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let code = sources(&root.join("src")) + &sources(&root.join("crates"));
        for place in PLACES {
            assert_eq!(code.matches(&format!("die_at!(\"{place}\")")).count(), 1, "{place}");
        }
        assert_eq!(code.matches("die_at!(").count(), PLACES.len());
    }
}
