//! The work on a sale beside its purchases: planning and changing it, its messages and what follows from them, the release of
//! units, and what keeps Redis and PostgreSQL in agreement.

pub mod audit;
pub mod expire;
pub mod fulfil;
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
