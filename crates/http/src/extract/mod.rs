//! The parts of a request that handlers read before they act: the caller's token, the client's address, ids in the path, parameters of
//! lists, the body, the trace.

mod bearer;
mod body;
mod client_address;
mod idempotency_key;
mod path;
mod trace;

pub use bearer::bearer_token;
pub use body::{Body, read as read_body, read_of as read_body_of};
pub use client_address::{TrustedProxies, client_address};
pub use idempotency_key::idempotency_key;
pub use path::query;
pub use path::{order_id, parse_order_id, product_id, sale_id};
pub use trace::request_span;
