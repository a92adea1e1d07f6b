//! A sale on many machines, simulated: how fast, how full, and what bends first.
//!
//! What a purchase costs each process comes from the JSON of `./dev bench` (`measured`); what nobody has measured is an option with a
//! name that says so (`assumed`). A rush at one sale is played buyer by buyer (`rush`, on `engine`), and a day of many sales second by
//! second (`day`). `plan` goes from an aim to machines. `check` plays the bench's own cases and compares: that is how far the
//! simulation is to be believed. `report` prints.
//!
//! The same inputs and the same seed give the same figures. docs/scale.md reads them.

pub mod assumed;
pub mod check;
pub mod day;
pub mod engine;
pub mod measured;
pub mod plan;
pub mod random;
pub mod report;
pub mod rush;
pub mod waits;
