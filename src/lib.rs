//! Seckill, a flash-sale backend: it never sells a unit too many, and never loses a winner.
//!
//! This crate is the program: [`cli`] has the commands; [`app`] connects, wires and runs what the other crates do; [`api`] makes the
//! routes and the API's document; [`doctor`] finds unsafe settings in production. docs/ARCHITECTURE.md has the picture of all crates.
//!
//! A purchase travels `seckill_buying::api` → `seckill_buying::sale` → `seckill_redis` → `seckill_postgres` → 202. Then workers carry it on:
//! `seckill_buying::sale_work::relay` → `seckill_rabbitmq` → `seckill_buying::sale_work::fulfil` → `seckill_postgres`. Nothing flows backwards.

pub mod api;
pub mod app;
pub mod cli;
pub mod doctor;
