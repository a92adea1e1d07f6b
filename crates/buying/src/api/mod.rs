//! The API for buyers: sales, challenges, purchases, orders.

mod call;
pub mod challenges;
pub mod events;
pub mod orders;
mod problems;
pub mod purchases;
pub mod sales;
pub mod shortcut;
pub mod state;

pub use call::Call;
