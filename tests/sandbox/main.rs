//! The sandbox channel over HTTP, in this process and as a program that is killed. A binary of its own: it needs no servers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

mod bank;
mod bank_calls;
mod killed_and_restarted;
mod receiver;
mod switches;
