//! Tests of the sandbox channel over HTTP, in this process and as a program that is killed. They are a binary of their own,
//! because they need no servers.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot continue must fail

mod bank;
mod bank_calls;
mod killed_and_restarted;
mod receiver;
mod switches;
