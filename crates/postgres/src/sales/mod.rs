//! Sales: terms and products, the catalogue of the instances, epochs, waves, and reads for the auditor and the live page.

pub mod audit;
mod audit_checks;
pub mod blocks;
pub mod catalog;
pub mod change;
pub mod drafts;
pub mod epochs;
pub mod erasure;
pub mod lapsed_holds;
pub mod live;
pub mod products;
pub mod retention;
pub mod terms;
pub mod watch;
pub mod waves;
