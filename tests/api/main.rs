//! Integration tests: the production builder against real Redis, PostgreSQL and RabbitMQ.
//!
//! `./dev test` starts the servers and names them in REDIS_URL, DATABASE_URL and AMQP_URL. Each test has a database, a
//! Redis prefix and a queue prefix of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

mod admin;
mod answers;
mod audit;
mod clock;
mod config;
mod crash;
mod delivery;
mod events;
mod flow;
mod harness;
mod limits;
mod locks;
mod memory;
mod openapi;
mod outage;
mod payments;
mod reads;
#[path = "../outflow/receiver.rs"]
#[allow(dead_code)] // what only outflows need
mod receiver;
mod settle;
mod steering;
mod stock;
mod telemetry;
mod waves;
mod webhooks;
