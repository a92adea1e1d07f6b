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
pub mod programs;
mod prometheus;
mod sales;
mod scene;
mod short_rules;
mod two_masters;
