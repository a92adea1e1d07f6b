//! Outflows at the receiver: real worker processes against a real PostgreSQL, and a receiver that stamps what arrives
//! by its own clock.
//!
//! A binary of its own: cargo runs it alone, and its tests one after another, because they measure milliseconds.
//! SECKILL_TEST_LONG=1 plays them at full length: a minute each, with a pause of a minute.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

mod commands;
mod constant_rate;
mod item_outcomes;
mod tls_receivers;
mod worker_processes;
