//! Signed HTTP requests, for both ends: signatures as Standard Webhooks defines them, a sender that connects before its request is due,
//! the backoff between attempts, and the wait that a receiver asks for.
//!
//! The service and the sandbox bank share only this crate, because both ends of a connection must agree on signatures.

mod backoff;
mod retry_after;
mod sender;
mod signature;
mod transport;

pub use backoff::backoff_ms;
pub use retry_after::retry_after;
pub use sender::{CONNECT_MAX, HttpAnswer, HttpSender, PreparedRequest, SendError, SignedRequest, is_http};
pub use signature::{InvalidSecret, Secret, SignatureError, signed_headers, verify};
pub use transport::{connect_to_any, tls_config};
