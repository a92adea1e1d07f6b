//! Tests of payments and refunds, with a bank in a process of its own (`seckill channel-sandbox`) and workers that are killed.
//! Our books and the bank's must agree to the cent.
//!
//! These tests are a binary of their own, which cargo runs alone. The peak of payments runs alone there. SECKILL_TEST_LONG=1 runs
//! them at full length, and one after another.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot continue must fail

mod bank;
mod bank_away;
#[cfg(feature = "failpoints")]
mod killed_at_named_places;
mod misbehaving_bank;
mod pay_cancel_races;
mod payment_peak;
mod refund_rate;
mod restore_drill;
mod two_channels;
mod world;
