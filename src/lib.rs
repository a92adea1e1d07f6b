//! Seckill, a flash-sale backend: it never sells a unit too many, and never loses a winner.
//!
//! The rooms, in reading order:
//!
//! 1. [`domain`] — what the business is made of: pure types and decisions.
//! 2. [`gate`] — Redis, fast and not trusted: admission, stock, holds, locks.
//! 3. [`ledger`] — PostgreSQL, the truth: sales, orders, outbox.
//! 4. [`queue`] — RabbitMQ, the conveyor between them.
//! 5. [`channel`] — the receivers outside. [`sandbox`] — one of them, that plays the bank.
//! 6. [`sale`] — the story: purchase, fulfil, expire, release, refill, reconcile, audit. And [`flow`] — permits for
//!    whoever may ask, and how fast things may go. And [`pay`] — money, there and back.
//!    And [`admin`] — people who look after it.
//! 7. [`http`] and [`pages`] — the way in. 8. [`worker`] — what goes on by itself.
//! 9. [`load`] — the rush, which speaks HTTP only. 10. [`app`] — everything wired together.
//!
//! A purchase travels `http` → `sale::purchase` → `gate` → `ledger` → 202, and then `worker` → `queue` → `worker` →
//! `sale::fulfil` → `ledger`. Nothing flows backwards. docs/ARCHITECTURE.md says who may import whom.

pub mod admin;
pub mod app;
pub mod channel;
pub mod cli;
pub mod config;
pub mod domain;
pub mod failpoint;
pub mod flow;
pub mod gate;
pub mod http;
pub mod ledger;
pub mod pages;
pub mod pay;
pub mod queue;
pub mod sale;
pub mod telemetry;
pub mod worker;
