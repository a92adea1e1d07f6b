//! Long answers in slices. actix-http (3.20) copies a body that is one piece into the connection's buffer at once, whether the client
//! reads it or not: a megabyte for each client that asks for the API's document and reads nothing. It asks for the next slice when
//! the one before is with the kernel.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, EitherBody, MessageBody};
use bytes::Bytes;

/// The longest slice, in bytes.
pub const SLICE: usize = 16 * 1024;

/// What is left of a body. All answers with the same body share its memory.
pub struct Slices(Bytes);

impl Slices {
    /// Slices of the body, if it is in memory and longer than one.
    pub fn of<B: MessageBody>(body: B) -> EitherBody<B, Self> {
        match body.size() {
            BodySize::Sized(length) if length > SLICE as u64 => match body.try_into_bytes() {
                Ok(bytes) => EitherBody::right(Self(bytes)),
                Err(body) => EitherBody::left(body),
            },
            _ => EitherBody::left(body),
        }
    }
}

impl MessageBody for Slices {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.0.len() as u64)
    }

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        let length = self.0.len().min(SLICE);
        Poll::Ready((length > 0).then(|| Ok(self.0.split_to(length))))
    }
}
