//! The limiters: the Lua that limits against the Rust that says what limiting is, and both against the clock.
//!
//! Needs Redis alone, in REDIS_URL. SECKILL_TEST_LONG=1 lets the crowd run for a minute instead of seconds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

mod limiter_behaviour;
mod lua_matches_model;
mod model_promises;
mod test_limiter;
mod twenty_processes;
mod waiting_lines;
