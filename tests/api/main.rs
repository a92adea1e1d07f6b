//! Integration tests: the production builder against real Redis, PostgreSQL and RabbitMQ.
//!
//! `./dev test` starts the servers and names them in REDIS_URL, DATABASE_URL and AMQP_URL. A test that only asks for answers shares a
//! running system with others; each other test has a database, a Redis prefix and a queue prefix of its own.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

mod backoffice;
mod buying;
mod client;
mod document;
mod flow;
mod network;
mod operations;
mod orders;
mod pages;
mod postgres;
mod redis;
mod sales;
