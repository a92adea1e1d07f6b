//! Tests of outflows with real worker processes, a real PostgreSQL, and a receiver that records the time of each arrival by its own clock.
//!
//! These tests are a binary of their own, which cargo runs alone. The test that measures milliseconds runs alone there. SECKILL_TEST_LONG=1
//! runs them at full length: a minute each, with a pause of a minute, and one after another.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot continue must fail

mod commands;
mod constant_rate;
mod item_outcomes;
mod tls_receivers;
mod worker_processes;
