//! Long answers in slices. actix-http (3.20) copies a body of one piece into the connection's buffer at once, even if the client does not
//! read. For the script of Swagger UI, that is a megabyte per client. From a body in slices, it copies the next slice when the kernel has
//! accepted the previous one.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, EitherBody, MessageBody};
use bytes::Bytes;

pub(crate) const SLICE: usize = 16 * 1024;
/// Limit of long answers in flight per thread. If no client reads, they take 750 MiB of the process and the kernel.
const LONG_ANSWERS_MAX: usize = 2000;

/// The long answers of a thread. Each one in flight holds a clone of the `Rc`, which counts them.
#[derive(Default)]
pub(crate) struct LongAnswers(Rc<()>);

pub(crate) struct Slices {
    rest: Bytes,
    _place: Rc<()>,
}

impl LongAnswers {
    /// The body, in slices if it is in memory and longer than one slice; `None` if too many are in flight.
    pub(crate) fn slice<B: MessageBody>(&self, body: B) -> Option<EitherBody<B, Slices>> {
        if !matches!(body.size(), BodySize::Sized(length) if length > SLICE as u64) {
            return Some(EitherBody::left(body));
        }
        match body.try_into_bytes() {
            Ok(_) if Rc::strong_count(&self.0) > LONG_ANSWERS_MAX => None,
            Ok(rest) => Some(EitherBody::right(Slices { rest, _place: Rc::clone(&self.0) })),
            Err(body) => Some(EitherBody::left(body)),
        }
    }
}

impl MessageBody for Slices {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.rest.len() as u64)
    }

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        let length = self.rest.len().min(SLICE);
        Poll::Ready((length > 0).then(|| Ok(self.rest.split_to(length))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_answers_have_a_bound_and_short_ones_pass() {
        let (answers, long) = (LongAnswers::default(), Bytes::from(vec![0; SLICE + 1]));
        let mut in_flight: Vec<_> = (0..LONG_ANSWERS_MAX).map(|_| answers.slice(long.clone()).unwrap()).collect();
        assert!(answers.slice(long.clone()).is_none());
        assert!(answers.slice(long.slice(1..)).is_some());
        in_flight.pop();
        assert!(answers.slice(long).is_some());
    }
}
