//! Sheds purchases of a sale with more of them in flight than a worker thread can answer soon, so that the others do not wait
//! long; and measures how long purchases wait for the thread, for Redis and for their commit, for what gives way to them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::sale::wait_probe::WaitProbe;
use seckill_domain::ids::SaleId;
use seckill_domain::pressure::{Arrivals, Pressure};
use seckill_domain::shards::SaleShards;
use seckill_domain::shed_pace::ShedPace;
use seckill_domain::shedding::{ShedLimit, TICK, Tick};
use seckill_postgres::orders::committer::Committer;
use seckill_redis::reserve::batcher::{ReserveBatcher, SaleWait};

/// Timers are that late on an idle thread.
const TIMER_STEP: Duration = Duration::from_millis(2);
/// Without a purchase for so many ticks, nobody waits, and nothing is measured until the next one.
const QUIET_TICKS: u32 = 10;

/// The purchases of one sale on this thread.
struct SaleLoad {
    limit: RefCell<ShedLimit>,
    in_flight: Cell<u32>,
    /// Purchases answered since the last tick.
    answered: Cell<u32>,
}

/// A purchase in flight.
pub struct InFlight {
    load: Rc<SaleLoad>,
    is_answered: bool,
}

impl InFlight {
    /// Ends a purchase that was refused because too many wait: it does not count as answered.
    pub(crate) fn refuse(mut self) {
        self.is_answered = false;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.load.in_flight.update(|count| count - 1);
        self.load.answered.update(|count| count + u32::from(self.is_answered));
    }
}

/// A shed purchase whose answer is held back.
struct HeldBack<'a>(&'a Cell<usize>);

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        self.0.update(|count| count - 1);
    }
}

/// The shedder of one worker thread.
pub struct LoadShedder {
    batcher: ReserveBatcher,
    committer: Committer,
    pressure: Arc<Pressure>,
    wait_target: Duration,
    /// Sales with purchases in flight, and sales near their limit.
    sales: RefCell<HashMap<SaleId, Rc<SaleLoad>>>,
    is_near: Cell<bool>,
    /// Purchases that have come since the last tick.
    asked: Cell<u32>,
    first_asked: Rc<Notify>,
    probe: Rc<WaitProbe>,
    pace: RefCell<ShedPace>,
    /// Answers of shed purchases that are held back, each of which keeps a connection; and how many may be, so that others find one.
    held_back: Cell<usize>,
    held_back_max: usize,
}

impl LoadShedder {
    /// Starts to measure on this thread, which must run a `LocalSet`. It ends when the shedder is dropped.
    ///
    /// # Errors
    /// The system gives the process no more files.
    pub fn start(
        batcher: ReserveBatcher,
        committer: Committer,
        pressure: Arc<Pressure>,
        wait_target: Duration,
        held_back_max: usize,
    ) -> io::Result<Rc<Self>> {
        let first_asked = Rc::<Notify>::default();
        let shedder = Rc::new(Self {
            batcher,
            committer,
            pressure,
            wait_target,
            sales: RefCell::default(),
            is_near: Cell::default(),
            asked: Cell::default(),
            first_asked: Rc::clone(&first_asked),
            probe: WaitProbe::start()?,
            pace: RefCell::default(),
            held_back: Cell::default(),
            held_back_max,
        });
        let pressure = Arc::clone(&shedder.pressure);
        tokio::task::spawn_local(Self::measure(Rc::downgrade(&shedder), pressure, first_asked));
        Ok(shedder)
    }

    /// Whether to refuse this purchase unread; never if its buyer may hold a ticket. `buyer` is called only while the sale's purchases are
    /// shed.
    pub(crate) fn sheds(&self, sale: SaleId, buyer: impl FnOnce() -> Option<(SaleShards, String)>) -> bool {
        let asked = self.asked.get();
        self.asked.set(asked.saturating_add(1));
        if asked == 0 {
            self.first_asked.notify_one();
        }
        self.is_near.get()
            && self.sales.borrow().get(&sale).is_some_and(|load| load.limit.borrow().is_full(load.in_flight.get()))
            && buyer().is_some_and(|(of, user)| self.batcher.is_stranger(of, &user))
    }

    /// Waits until the answer to a purchase that is shed may go: two seconds at most, and not at all where too many others wait.
    pub(crate) async fn hold_back(&self) {
        if self.held_back.get() >= self.held_back_max {
            return;
        }
        let delay = self.pace.borrow_mut().delay(Instant::now());
        self.held_back.update(|count| count + 1);
        let _held_back = HeldBack(&self.held_back);
        tokio::time::sleep(delay).await;
    }

    /// Counts a purchase as in flight, until the returned value is dropped.
    pub(crate) fn begin(&self, sale: SaleId) -> InFlight {
        let new = || {
            let limit = RefCell::new(ShedLimit::new(self.wait_target));
            Rc::new(SaleLoad { limit, in_flight: Cell::default(), answered: Cell::default() })
        };
        let load = Rc::clone(self.sales.borrow_mut().entry(sale).or_insert_with(new));
        load.in_flight.update(|count| count + 1);
        InFlight { load, is_answered: true }
    }

    /// Adjusts each sale's limit. Returns the longest wait.
    fn adjust(&self, since: Duration, unread: Duration) -> Duration {
        let waits = self.batcher.take_waits(unread);
        let of_thread = unread + self.committer.wait();
        let (mut longest, mut is_near) = (of_thread, false);
        self.sales.borrow_mut().retain(|sale, load| {
            let SaleWait { in_line, call } = waits.get(sale).copied().unwrap_or_default();
            let (in_flight, answered, wait) = (load.in_flight.get(), load.answered.take(), of_thread + in_line);
            let mut limit = load.limit.borrow_mut();
            limit.adjust(Tick { since, in_flight, answered, wait, unread, call });
            if let Some(patience) = limit.patience() {
                self.batcher.refuse_overdue(*sale, patience);
            }
            longest = longest.max(wait);
            is_near |= limit.is_near();
            limit.is_near() || in_flight > 0
        });
        self.is_near.set(is_near);
        self.batcher.learn_holders(is_near);
        longest
    }

    async fn measure(shedder: Weak<Self>, pressure: Arc<Pressure>, first_asked: Rc<Notify>) {
        let mut quiet_ticks = QUIET_TICKS;
        let (mut arrivals, mut counted) = (Arrivals::default(), Instant::now());
        loop {
            if quiet_ticks >= QUIET_TICKS {
                first_asked.notified().await;
            }
            let begun = Instant::now();
            arrivals.read(&pressure, begun - counted);
            let due = begun + TICK;
            tokio::time::sleep_until(due.into()).await;
            let Some(shedder) = shedder.upgrade() else { return };
            let now = Instant::now();
            let asked = shedder.asked.take();
            quiet_ticks = if asked > 0 { 0 } else { quiet_ticks + 1 };
            pressure.record_arrivals(asked);
            if arrivals.read(&pressure, now - begun) {
                pressure.record_rush(now);
            }
            counted = now;
            let late = now.saturating_duration_since(due).saturating_sub(TIMER_STEP);
            let unread = late.max(shedder.probe.take_wait(now));
            let wait = shedder.adjust(now - begun, unread);
            if !shedder.sales.borrow().is_empty() {
                // It goes on until all are answered and nothing is shed any more.
                quiet_ticks = quiet_ticks.min(QUIET_TICKS - 1);
            }
            pressure.record(wait, now);
        }
    }
}

impl Drop for LoadShedder {
    fn drop(&mut self) {
        self.first_asked.notify_one();
    }
}
