//! Flow control: applications, their policies, what was asked of each policy, and alarms.

pub mod alarms;
pub mod apps;
pub mod policies;
pub mod policy_minutes;
mod policy_rows;
