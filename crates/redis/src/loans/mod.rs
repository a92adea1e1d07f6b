//! Loans between the shards of a sale (protocol, rule 15; docs/scale.md). Sales with one shard never come here.

pub(super) mod borrower;
mod calls;
pub(super) mod empty_shards;
pub(super) mod lending;

pub use super::reply_codes::BarCode;
