//! The alarm drill. For each alert of deploy/prometheus/rules.yaml, a test causes its condition on real servers and processes. Debian's
//! Prometheus must show that the alert fires, and that it clears when the cause is gone. Only the durations are shorter (`short_rules`).
//! Four alerts look at alarms that other tests raise, and need no cause here.
//!
//! Each of the modules with a test is a system of its own, in which several causes run side by side.

mod crowd;
mod drill;
mod lost_servers;
mod messages;
mod money;
mod programs;
mod prometheus;
mod sales;
mod scene;
mod short_rules;
mod two_masters;

use std::collections::BTreeSet;

use regex::Regex;

use crate::dashboards::{read, rules};

/// The modules that cause alerts.
const CAUSES: [&str; 6] = ["crowd", "lost_servers", "messages", "money", "sales", "two_masters"];

/// `thresholds_and_alarms`, `lost_keys` and `callers_apart` raise the alarms that these alerts look at.
const RAISED_ELSEWHERE: [&str; 4] = ["SeckillParked", "SeckillRefusals", "SeckillKeysLost", "SeckillLimiterBroken"];

/// Each other alert has a cause, and a cause names existing alerts. Each world checks that the alerts it waits for fire and clear.
#[test]
fn every_alert_has_its_cause() {
    let alerts = rules();
    let alerts: BTreeSet<&str> = alerts.iter().filter_map(|rule| rule["alert"].as_str()).collect();
    let causes = CAUSES.map(|module| read(&format!("tests/api/operations/alarm_drill/{module}.rs"))).concat();
    let named = Regex::new(r#""(Seckill\w+)""#).unwrap();
    let named = named.captures_iter(&causes).map(|found| found.get(1).unwrap().as_str());
    assert_eq!(named.chain(RAISED_ELSEWHERE).collect::<BTreeSet<_>>(), alerts);
}
