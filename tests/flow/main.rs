//! The limiters: the Lua scripts against their Rust models, the models against their promises, and twenty processes
//! against one Redis.
//!
//! Needs only Redis, in REDIS_URL. SECKILL_TEST_LONG=1 lets the twenty processes run for a minute instead of seconds.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on must fail

mod limiter_behaviour;
mod lua_matches_model;
mod model_promises;
mod test_limiter;
mod twenty_processes;
mod waiting_lines;
