//! What handlers read of a request before they act: the caller's token, the client's address, ids in the path, the body, the
//! trace that it belongs to.

mod body;
mod client_address;
mod path;
mod tokens;
mod trace;

pub(super) use body::{Body, read as read_body};
pub(super) use client_address::client_address;
pub(super) use path::{order_id, parse_order_id, product_id, sale_id};
pub use tokens::Tokens;
pub(super) use tokens::{bearer_token, unverified_user};
pub(super) use trace::request_span;
