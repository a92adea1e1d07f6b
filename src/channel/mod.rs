//! What is spoken to outside: receivers that take our requests over HTTP.

pub mod post;
