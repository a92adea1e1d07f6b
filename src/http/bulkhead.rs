//! Bounds on what is not a purchase, kind by kind, so that a crowd that asks for one thing stands in front of nobody who asks
//! for another. (The pattern is called bulkhead: M. Nygard, "Release It!".)

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use super::problem::Problem;
use crate::domain::ids::UserId;
use crate::domain::pressure::Pressure;
use crate::sale::read_quota::ReadQuota;

/// How long a request waits in line before it is answered 503.
const LINE_MAX: Duration = Duration::from_secs(2);
/// How long it may take after that.
const WORK_MAX: Duration = Duration::from_secs(5);
/// How long a place stays empty whose work was given up.
const GIVEN_UP_REST: Duration = Duration::from_secs(2);

/// The bounds of an instance.
pub struct Bulkheads {
    /// Lists of orders, and streams that begin.
    pub orders: Bulkhead,
    pub cancellations: Bulkhead,
    /// People who sign in. Their passwords are checked elsewhere, in a line of their own.
    pub sign_ins: Bulkhead,
    /// What people do who are signed in.
    pub admin: Bulkhead,
    quota: ReadQuota,
}

/// The settings of what is read.
pub struct ReadTerms {
    /// How often one buyer may read orders in a second.
    pub buyer_reads: u32,
    /// How many requests about orders wait in line.
    pub line_max: usize,
    /// The connections to PostgreSQL. Each kind uses an eighth of them at most.
    pub connections: u32,
}

impl Bulkheads {
    pub fn new(pressure: &Arc<Pressure>, terms: &ReadTerms) -> Self {
        // An eighth for each kind.
        let places = usize::try_from(terms.connections / 8).unwrap_or(usize::MAX).max(1);
        let bulkhead = |what, line_max| Bulkhead {
            what,
            places: Arc::new(Semaphore::new(places)),
            in_line: AtomicUsize::new(0),
            line_max,
            pressure: Arc::clone(pressure),
        };
        Self {
            orders: bulkhead("orders", terms.line_max),
            cancellations: bulkhead("cancellations", terms.line_max),
            sign_ins: bulkhead("sign-ins", 20),
            admin: bulkhead("admin", 200),
            quota: ReadQuota::new(terms.buyer_reads),
        }
    }

    /// Counts a read of orders by this buyer.
    ///
    /// # Errors
    /// `quota-exceeded` if the buyer has read too often in this second.
    pub fn count_read(&self, buyer: &UserId) -> Result<(), Problem> {
        self.quota.count(buyer).map_err(|too_often| Problem::reads_too_often(self.quota.max, too_often))
    }
}

/// So many requests of one kind are worked on at the same time, so many more wait in line, and any more are answered 503 at
/// once. While purchases wait, each place rests after its work.
pub struct Bulkhead {
    what: &'static str,
    places: Arc<Semaphore>,
    in_line: AtomicUsize,
    line_max: usize,
    pressure: Arc<Pressure>,
}

impl Bulkhead {
    /// Does the work when a place is free.
    ///
    /// # Errors
    /// `temporarily-unavailable` if the line is too long, or the work takes too long; whether it has had its effect is then
    /// unknown. Else the work's own.
    pub async fn run<T, E: Into<Problem>>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, Problem> {
        let waiting = InLine::enter(&self.in_line);
        if waiting.ahead >= self.line_max {
            return Err(Problem::shed(self.what));
        }
        let Ok(Ok(permit)) = timeout(LINE_MAX, Arc::clone(&self.places).acquire_owned()).await else {
            return Err(Problem::shed(self.what));
        };
        drop(waiting);
        let mut place = Place { permit: Some(permit), rest: GIVEN_UP_REST };
        let began = Instant::now();
        let Ok(done) = timeout(WORK_MAX, work).await else {
            tracing::warn!(what = self.what, "request took too long");
            return Err(Problem::unavailable());
        };
        place.rest = self.pressure.read_rest(began.elapsed(), Instant::now());
        done.map_err(Into::into)
    }
}

/// A place where work is done. It is free again only after a rest, also when the work was given up or its caller has gone: the
/// connection to PostgreSQL comes back to the pool, or is given up, in that time.
struct Place {
    permit: Option<OwnedSemaphorePermit>,
    rest: Duration,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take().filter(|_| !self.rest.is_zero()) {
            let rest = self.rest;
            tokio::spawn(async move {
                sleep(rest).await;
                drop(permit);
            });
        }
    }
}

/// A place in line, left when the request ends or its connection is reset.
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
