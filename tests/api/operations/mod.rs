//! What operators use: the doctor, alarms, metrics, traces, private servers.

pub mod alarm_drill;
pub mod cli_lists;
pub mod dev_servers;
pub mod doctor;
pub mod documents;
pub mod memory;
pub mod metrics_and_logs;
pub mod traces;
