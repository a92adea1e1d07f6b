//! Signed HTTP requests, from both ends: signatures as Standard Webhooks defines them, a sender whose connection is made
//! before its request is due, and the backoff between attempts.
//!
//! The service and the sandbox bank share this crate, because both ends of a wire must agree on signatures; they share
//! nothing else.

mod backoff;
mod sender;
mod signature;
mod transport;

pub use backoff::backoff_ms;
pub use sender::{CONNECT_MAX, HttpAnswer, HttpSender, PreparedRequest, SendError, SignedRequest, is_http};
pub use signature::{InvalidSecret, Secret, SignatureError, TOLERANCE_S, signed_headers, verify};
