//! Bounds on what is not a purchase, kind by kind, so that a crowd that asks for one thing stands in front of nobody who asks
//! for another. (The pattern is called bulkhead: M. Nygard, "Release It!".)

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
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
    /// Lists of orders, cancellations, and streams that begin.
    pub orders: Bulkhead,
    /// People who sign in: checking a password takes a core for long.
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
    /// The connections to PostgreSQL, of which half are used at most.
    pub connections: u32,
}

impl Bulkheads {
    pub fn new(pressure: &Arc<Pressure>, terms: &ReadTerms) -> Self {
        let share = |part| usize::try_from(terms.connections / part).unwrap_or(usize::MAX).max(1);
        let bulkhead = |what, places, line_max| Bulkhead {
            what,
            places: Arc::new(Semaphore::new(places)),
            in_line: AtomicUsize::new(0),
            line_max,
            pressure: Arc::clone(pressure),
        };
        Self {
            orders: bulkhead("orders", share(4), terms.line_max),
            sign_ins: bulkhead("sign-ins", share(8), 20),
            admin: bulkhead("admin", share(8), 200),
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
        let Ok(Ok(place)) = timeout(LINE_MAX, Arc::clone(&self.places).acquire_owned()).await else {
            return Err(Problem::shed(self.what));
        };
        drop(waiting);
        let began = Instant::now();
        let done = timeout(WORK_MAX, work).await;
        let rest = match &done {
            Ok(_) => self.pressure.read_rest(began.elapsed(), Instant::now()),
            // Its connection to PostgreSQL comes back to the pool, or is given up, in that time.
            Err(_) => GIVEN_UP_REST,
        };
        if !rest.is_zero() {
            tokio::spawn(async move {
                sleep(rest).await;
                drop(place);
            });
        }
        done.map_err(|_| {
            tracing::warn!(what = self.what, "request took too long");
            Problem::unavailable()
        })?
        .map_err(Into::into)
    }
}

/// A place in line. Whoever hangs up leaves it.
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
