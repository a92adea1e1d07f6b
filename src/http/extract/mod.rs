//! What handlers read of a request before they act: the caller's token, the client's address, ids in the path, the body.

mod body;
mod client_address;
mod path;
mod tokens;

pub(super) use body::Body;
pub(super) use client_address::client_address;
pub(super) use path::{order_id, parse_order_id, product_id, sale_id};
pub use tokens::Tokens;
pub(super) use tokens::{bearer_token, unverified_user};
