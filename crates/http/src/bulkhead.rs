//! Bounds on all requests except purchases, one for each kind. A crowd of requests of one kind delays no other kind. (The pattern
//! is called bulkhead: M. Nygard, "Release It!".)

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::rt::spawn;
use futures_util::future::LocalBoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::problem::Problem;
use crate::quota::Quota;
use seckill_domain::ids::UserId;
use seckill_domain::pressure::Pressure;

/// How long a request is queued before it is answered 503.
const LINE_MAX: Duration = Duration::from_secs(2);
/// How long the work itself may take after that.
const WORK_MAX: Duration = Duration::from_secs(5);
/// How long a place stays empty after its work has timed out. In that time the connection to PostgreSQL returns to the pool or is
/// closed.
const GIVEN_UP_REST: Duration = Duration::from_secs(2);

pub struct Bulkheads {
    pub orders: Bulkhead,
    /// Cancellations of orders that another transaction has locked.
    pub cancellations: Bulkhead,
    /// Payments of orders that another transaction has locked.
    pub payments: Bulkhead,
    pub refunds: Bulkhead,
    /// Callbacks of payment channels, if their signature matches. They never give way to purchases: an order waits for each.
    pub callbacks: Bulkhead,
    /// Sign-ins. Passwords are checked in a queue of their own.
    pub sign_ins: Bulkhead,
    /// Sign-ins from browsers that have signed in to the account before, and sign-ins with the right password. Strangers, however many,
    /// do not delay them.
    pub known_sign_ins: Bulkhead,
    pub admin: Bulkhead,
    /// Changes by signed-in people. They never give way to purchases and are not queued behind reads: a rush is when a sale is paused.
    pub admin_changes: Bulkhead,
    reads: Quota,
}

impl Bulkheads {
    /// Of the `connections` to PostgreSQL, each kind uses at most 1/8, callbacks at most half.
    pub fn new(pressure: &Arc<Pressure>, connections: u32, line_max: usize, buyer_reads: u32) -> Self {
        let part = |divisor| usize::try_from(connections / divisor).unwrap_or(usize::MAX).max(1);
        let bulkhead = |what, line_max| Bulkhead {
            gives_way_to: Some(Arc::clone(pressure)),
            ..Bulkhead::new(what, part(8), line_max)
        };
        Self {
            orders: bulkhead("orders", line_max),
            cancellations: bulkhead("cancellations", line_max),
            payments: bulkhead("payments", line_max),
            refunds: bulkhead("refunds", line_max),
            callbacks: Bulkhead::new("callbacks", part(2), line_max),
            sign_ins: bulkhead("sign-ins", 20),
            known_sign_ins: bulkhead("known sign-ins", 20),
            admin: bulkhead("admin", 200),
            // At least two places: one of them may be busy with a long resend of parked messages.
            admin_changes: Bulkhead::new("admin changes", part(8).max(2), 200),
            reads: Quota::new(buyer_reads, Duration::from_secs(1)),
        }
    }

    pub fn count_read(&self, buyer: &UserId) -> Result<(), Problem> {
        self.reads.count(buyer.as_str()).map_err(|too_often| Problem::too_often("buyer", too_often))
    }
}

/// Works on a bounded number of requests of one kind and queues a bounded number. All others are answered 503 at once.
pub struct Bulkhead {
    what: &'static str,
    places: Arc<Semaphore>,
    line: Semaphore,
    /// While purchases are queued, a place rests after its work.
    gives_way_to: Option<Arc<Pressure>>,
}

impl Bulkhead {
    /// Bounds that never give way to purchases.
    pub fn new(what: &'static str, places: usize, line_max: usize) -> Self {
        Self { what, places: Arc::new(Semaphore::new(places)), line: Semaphore::new(line_max), gives_way_to: None }
    }

    /// Does the work when a place is free. Work that has begun continues if its caller hangs up. So a caller can neither leave a
    /// connection to PostgreSQL in the middle of a statement nor free places by hanging up.
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

    async fn place(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let Ok(_in_line) = self.line.try_acquire() else { return Err(Problem::shed(self.what)) };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// With one place for each kind.
    fn bulkheads() -> Bulkheads {
        let pressure = Arc::new(Pressure::new(Instant::now(), Duration::from_millis(100)));
        Bulkheads::new(&pressure, 8, 5, 1)
    }

    #[actix_web::test]
    async fn changes_wait_behind_no_read() {
        let bulkheads = bulkheads();
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
        let bulkhead = bulkheads().cancellations;
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
