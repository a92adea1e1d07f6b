//! Flow control: applications, their policies, counts of requests by the minute, and alarms.

pub mod alarm_handling;
pub mod alarms;
pub mod apps;
pub mod policies;
pub mod policy_minutes;
mod policy_rows;
