//! Sales: their terms and products, the catalogue that instances load, epochs, waves, and what the auditor and the live page read.

pub mod audit;
mod audit_checks;
pub mod catalog;
pub mod epochs;
pub mod lapsed_holds;
pub mod live;
pub mod products;
pub mod retention;
pub mod terms;
pub mod watch;
pub mod waves;
