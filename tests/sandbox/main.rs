//! The sandbox channel over HTTP, in this process and as a program that is killed. A binary of its own: it needs no servers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

#[path = "../api/harness.rs"]
#[allow(dead_code)] // what only purchases need
mod harness;

mod bank;
mod calls;
mod misbehaviour;
mod receiver;
mod restarts;
