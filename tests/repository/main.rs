//! Tests of the repository's files. None needs a server.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

mod api_document;
mod compose_file;
mod dashboards;
mod migrations;
mod published_secrets;
mod runbooks;
