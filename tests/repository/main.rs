//! The files of the repository: compose.yaml, the Dockerfile, dashboards, runbooks, published secrets, and the lists of docs. No test needs a server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

mod api_document;
mod compose_file;
mod dashboards;
mod published_secrets;
mod runbooks;
