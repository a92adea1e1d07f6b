//! Bounds on all requests except purchases, one for each kind. A crowd of requests of one kind delays no other kind. (The pattern
//! is called bulkhead: M. Nygard, "Release It!".)

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use actix_web::rt::spawn;
use futures_util::future::LocalBoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::problem::Problem;
use crate::domain::ids::UserId;
use crate::domain::pressure::Pressure;
use crate::sale::quota::Quota;

/// How long a request is queued before it is answered 503.
const LINE_MAX: Duration = Duration::from_secs(2);
/// How long the work itself may take after that.
const WORK_MAX: Duration = Duration::from_secs(5);
/// How long a place stays empty after its work has timed out. In that time the connection to PostgreSQL returns to the pool or is
/// closed.
const GIVEN_UP_REST: Duration = Duration::from_secs(2);

/// The bounds of an instance.
pub struct Bulkheads {
    /// Lists of orders, and streams that begin.
    pub orders: Bulkhead,
    /// Cancellations of orders that another transaction has locked.
    pub cancellations: Bulkhead,
    /// Payments of orders that another transaction has locked.
    pub payments: Bulkhead,
    /// Refunds that buyers ask for.
    pub refunds: Bulkhead,
    /// Callbacks of payment channels, if their signature matches. They never give way to purchases: an order waits for each.
    pub callbacks: Bulkhead,
    /// Sign-ins. Passwords are checked in a queue of their own.
    pub sign_ins: Bulkhead,
    /// Sign-ins from browsers that have signed in to the account before, and sign-ins with the right password. Strangers, however many,
    /// do not delay them.
    pub known_sign_ins: Bulkhead,
    /// Reads by signed-in people.
    pub admin: Bulkhead,
    /// Changes by signed-in people. They never give way to purchases and are not queued behind reads: a rush is when a sale is paused.
    pub admin_changes: Bulkhead,
    reads: Quota,
}

/// The settings of the bounds.
pub struct ReadTerms {
    /// How often one buyer may read orders in a second.
    pub buyer_reads: u32,
    /// How many requests about orders may be queued.
    pub line_max: usize,
    /// The connections to PostgreSQL. Each kind uses at most 1/8 of them, callbacks at most half.
    pub connections: u32,
}

impl Bulkheads {
    pub fn new(pressure: &Arc<Pressure>, terms: &ReadTerms) -> Self {
        let part = |divisor| usize::try_from(terms.connections / divisor).unwrap_or(usize::MAX).max(1);
        let bulkhead = |what, line_max| Bulkhead {
            what,
            places: Arc::new(Semaphore::new(part(8))),
            in_line: AtomicUsize::new(0),
            line_max,
            gives_way_to: Some(Arc::clone(pressure)),
        };
        Self {
            orders: bulkhead("orders", terms.line_max),
            cancellations: bulkhead("cancellations", terms.line_max),
            payments: bulkhead("payments", terms.line_max),
            refunds: bulkhead("refunds", terms.line_max),
            callbacks: Bulkhead {
                places: Arc::new(Semaphore::new(part(2))),
                gives_way_to: None,
                ..bulkhead("callbacks", terms.line_max)
            },
            sign_ins: bulkhead("sign-ins", 20),
            known_sign_ins: bulkhead("known sign-ins", 20),
            admin: bulkhead("admin", 200),
            admin_changes: Bulkhead {
                // At least two: one of them may be busy with a long resend of parked messages.
                places: Arc::new(Semaphore::new(part(8).max(2))),
                gives_way_to: None,
                ..bulkhead("admin changes", 200)
            },
            reads: Quota::new(terms.buyer_reads, Duration::from_secs(1)),
        }
    }

    /// Counts a read of orders by this buyer.
    ///
    /// # Errors
    /// `quota-exceeded` if the buyer has read too often in this second.
    pub fn count_read(&self, buyer: &UserId) -> Result<(), Problem> {
        self.reads.count(buyer.as_str()).map_err(|too_often| Problem::too_often("buyer", too_often))
    }
}

/// Works on a bounded number of requests of one kind and queues a bounded number. All others are answered 503 at once.
pub struct Bulkhead {
    what: &'static str,
    places: Arc<Semaphore>,
    in_line: AtomicUsize,
    line_max: usize,
    /// While purchases are queued, a place rests after its work.
    gives_way_to: Option<Arc<Pressure>>,
}

impl Bulkhead {
    /// Does the work when a place is free. Work that has begun continues if its caller hangs up. So a caller can neither leave a
    /// connection to PostgreSQL in the middle of a statement nor free places by hanging up.
    ///
    /// # Errors
    /// `temporarily-unavailable` if the queue is full or the work takes too long; then it is unknown whether the work took effect.
    /// Otherwise the error of the work.
    pub async fn run<T: 'static, E: Into<Problem> + 'static>(
        &self,
        work: impl Future<Output = Result<T, E>> + 'static,
    ) -> Result<T, Problem> {
        let place = self.place().await?;
        let (answer, answered) = oneshot::channel();
        // Sending fails if the caller has hung up.
        let work = Box::pin(async move { _ = answer.send(work.await) });
        spawn(attend(self.what, work, place, self.gives_way_to.clone()));
        match answered.await {
            Ok(done) => done.map_err(Into::into),
            Err(_) => Err(Problem::unavailable()),
        }
    }

    /// Queues for a place.
    async fn place(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let waiting = InLine::enter(&self.in_line);
        if waiting.ahead >= self.line_max {
            return Err(Problem::shed(self.what));
        }
        match timeout(LINE_MAX, Arc::clone(&self.places).acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) | Err(_) => Err(Problem::shed(self.what)),
        }
    }
}

/// Does the work within its time, then rests. The work is boxed, so that this function is compiled once for all kinds of requests.
async fn attend(
    what: &'static str,
    work: LocalBoxFuture<'static, ()>,
    place: OwnedSemaphorePermit,
    gives_way_to: Option<Arc<Pressure>>,
) {
    let began = Instant::now();
    let rest = match timeout(WORK_MAX, work).await {
        Ok(()) => gives_way_to.map_or(Duration::ZERO, |pressure| pressure.read_rest(began.elapsed(), Instant::now())),
        Err(_) => {
            tracing::warn!(what, "request took too long");
            GIVEN_UP_REST
        }
    };
    if !rest.is_zero() {
        sleep(rest).await;
    }
    drop(place);
}

/// A place in the queue, left when the request ends or its connection is reset.
struct InLine<'a> {
    in_line: &'a AtomicUsize,
    ahead: usize,
}

impl<'a> InLine<'a> {
    fn enter(in_line: &'a AtomicUsize) -> Self {
        let ahead = in_line.fetch_add(1, Ordering::Relaxed);
        Self { in_line, ahead }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.in_line.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[actix_web::test]
    async fn changes_wait_behind_no_read() {
        let pressure = Arc::new(Pressure::new(Instant::now(), Duration::from_millis(100)));
        let one_place = ReadTerms { buyer_reads: 1, line_max: 5, connections: 8 };
        let bulkheads = Bulkheads::new(&pressure, &one_place);
        let (finish, finished) = oneshot::channel();
        let reads = bulkheads.admin.run(async move {
            finished.await.unwrap();
            Ok::<_, Problem>(())
        });
        let change = async {
            assert!(bulkheads.admin_changes.run(async { Ok::<_, Problem>(()) }).await.is_ok());
            finish.send(()).unwrap();
        };
        let (read, ()) = tokio::join!(reads, change);
        assert!(read.is_ok(), "it ends after the change, which it would otherwise have kept waiting");
    }

    #[actix_web::test]
    async fn work_goes_on_when_its_caller_hangs_up_and_then_leaves_its_place() {
        let pressure = Arc::new(Pressure::new(Instant::now(), Duration::from_millis(100)));
        let one_place = ReadTerms { buyer_reads: 1, line_max: 5, connections: 8 };
        let bulkhead = Bulkheads::new(&pressure, &one_place).cancellations;
        let (begin, begun) = oneshot::channel();
        let (allow, allowed) = oneshot::channel();
        let (finish, finished) = oneshot::channel();
        let work = async move {
            begin.send(()).unwrap();
            allowed.await.unwrap();
            finish.send(()).unwrap();
            Ok::<_, Problem>(())
        };
        tokio::select! {
            _ = bulkhead.run(work) => panic!("the work waits"),
            begun = begun => begun.unwrap(),
        }
        // The caller has gone, and the next one waits for the place.
        let next = bulkhead.run(async { Ok::<_, Problem>(()) });
        let goes_on = async {
            allow.send(()).unwrap();
            finished.await.unwrap();
        };
        let (next, ()) = tokio::join!(next, goes_on);
        assert!(next.is_ok(), "no place is empty without work");
    }
}
