//! The work on a sale apart from purchasing: planning and changes, messages and their effects, the release of units, and keeping Redis
//! consistent with PostgreSQL.

pub mod audit;
pub mod expire;
mod fulfil;
pub mod group_work;
pub mod manage;
pub mod parked;
pub mod reconcile;
pub mod refill;
pub mod relay;
mod relay_messages;
pub mod release;
pub mod retention;
pub mod sales_in_turn;
pub mod waves;
