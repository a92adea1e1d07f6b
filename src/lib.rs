//! Seckill, a flash-sale backend: it never sells a unit too many, and never loses a winner.
//!
//! The rooms, in reading order:
//!
//! 1. [`domain`]: the business, as pure types and decisions.
//! 2. [`gate`]: Redis. It decides fast who may buy, and may lose everything: units, holds, limiters, locks.
//! 3. [`ledger`]: PostgreSQL, the truth: sales, purchases, orders, payments, and the outbox of unfinished work.
//! 4. [`queue`]: RabbitMQ, which carries work from the outbox to the workers. [`channel`]: the payment channels.
//! 5. [`sale`]: the use cases of buyers: challenges, purchases, orders, reads. [`sale_work`]: the other work on a sale: manage, fulfil,
//!    expire, release, refill, reconcile, audit. [`live`]: figures of watched sales. [`picture`]: redraws uploaded pictures.
//! 6. [`flow`]: permits for other applications, and outflows at a constant rate. [`pay`]: payments and refunds. [`admin`]: the use cases of
//!    signed-in people.
//! 7. [`http`]: shared code of the API's handlers, which are in [`buyer_api`], [`flow_api`] and [`admin_api`]; [`api`]: the table of their
//!    addresses. [`pages`]: the web pages. [`console`]: the pages of signed-in people. [`runbooks`]: instructions for each alarm.
//!    [`worker`]: the loop that repeats background steps.
//! 8. [`app`]: wires the rooms together. [`cli`]: the commands, which start it. [`doctor`]: finds unsafe settings in production. [`config`]
//!    and [`telemetry`] serve all rooms.
//!
//! A purchase travels `buyer_api` → `sale::purchase` → `gate` → `ledger` → 202. Then workers carry it on: `sale_work::relay` → `queue` →
//! `sale_work::fulfil` → `ledger`. Nothing flows backwards. docs/ARCHITECTURE.md says which room may import which.
//!
//! Other crates: `seckill-webhook` (signed HTTP requests), `seckill-captcha` (draws and checks challenges), `seckill-client` (the API for
//! other programs), `seckill-load` (the load generator, which knows only the API), `seckill-sandbox` (a payment channel for tests) and
//! `seckill-harness` (starts the service for tests).

pub mod admin;
pub mod admin_api;
pub mod api;
pub mod app;
pub mod buyer_api;
pub mod cli;
pub mod console;
pub mod doctor;
pub mod flow;
pub mod flow_api;
pub mod http;
pub mod live;
pub mod pages;
pub mod pay;
pub mod picture;
pub mod runbooks;
pub mod sale;
pub mod sale_work;
