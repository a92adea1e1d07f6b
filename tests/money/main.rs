//! Money, with a bank that is a program of its own (`seckill channel-sandbox`) and workers that are killed: what our
//! books say is what the bank's say, to the cent.
//!
//! A binary of its own: cargo runs it alone, and its tests one after another, because two of them count a bank's arrivals
//! by the second. SECKILL_TEST_LONG=1 plays them at full length.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

mod bank;
mod bank_away;
#[cfg(feature = "failpoints")]
mod killed_at_named_places;
mod misbehaving_bank;
mod pay_cancel_races;
mod payment_peak;
mod refund_rate;
mod two_channels;
mod world;
