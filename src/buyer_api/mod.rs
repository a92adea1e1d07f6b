//! The API for buyers: sales, challenges, purchases, orders, payments. And for payment channels: their callbacks.

pub mod challenges;
pub mod events;
pub mod orders;
pub mod payments;
pub mod purchases;
pub mod sales;
pub mod shortcut;
pub mod state;
