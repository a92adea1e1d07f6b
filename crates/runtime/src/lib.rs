//! The machinery of background work: the loop that repeats a step, batches of concurrent requests, and priorities of threads; and the places where a test
//! makes the process die.

pub mod failpoint;
pub mod failure_log;
pub mod low_priority;
pub mod worker;
