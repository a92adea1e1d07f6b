//! Asks Redis for units, for all buyers of a sale who wait (protocol, rules 2 and 13).

mod answers;
pub mod batcher;
mod call;
mod reply;
mod sold_out_cache;
