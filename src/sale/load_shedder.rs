//! Sheds purchases of a worker thread that has more of them under way than it can answer soon, so that the others do not wait
//! long; and measures how long purchases wait for the thread, for Redis and for their commit, for what gives way to them.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::domain::ids::SaleId;
use crate::domain::pressure::Pressure;
use crate::domain::shedding::{ShedLimit, TICK};
use crate::gate::reserve_batcher::ReserveBatcher;
use crate::ledger::orders::commit::Committer;

/// Timers are that late on an idle thread.
const TIMER_STEP: Duration = Duration::from_millis(2);
/// Without a purchase for so many ticks, nobody waits, and nothing is measured until the next one.
const QUIET_TICKS: u32 = 10;

/// A purchase under way.
pub struct UnderWay<'a>(&'a LoadShedder);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.update(|count| count - 1);
        self.0.answered.update(|count| count + 1);
    }
}

/// The shedder of one worker thread.
pub struct LoadShedder {
    batcher: ReserveBatcher,
    committer: Committer,
    pressure: Arc<Pressure>,
    limit: RefCell<ShedLimit>,
    under_way: Cell<u32>,
    /// Purchases answered since the last tick.
    answered: Cell<u32>,
    /// Whether a purchase has come since the last tick.
    asked: Cell<bool>,
    first_asked: Rc<Notify>,
}

impl LoadShedder {
    /// Starts to measure on this thread, which must run a `LocalSet`. It ends when the shedder is dropped.
    pub fn start(
        batcher: ReserveBatcher,
        committer: Committer,
        pressure: Arc<Pressure>,
        wait_target: Duration,
    ) -> Rc<Self> {
        let first_asked = Rc::<Notify>::default();
        let shedder = Rc::new(Self {
            batcher,
            committer,
            pressure,
            limit: RefCell::new(ShedLimit::new(wait_target)),
            under_way: Cell::default(),
            answered: Cell::default(),
            asked: Cell::default(),
            first_asked: Rc::clone(&first_asked),
        });
        tokio::task::spawn_local(Self::measure(Rc::downgrade(&shedder), first_asked));
        shedder
    }

    /// Whether to refuse this purchase unread. Never one of a buyer who may hold a ticket: `user` is asked for only while
    /// purchases are shed.
    pub fn sheds(&self, sale: SaleId, user: impl FnOnce() -> Option<String>) -> bool {
        if !self.asked.replace(true) {
            self.first_asked.notify_one();
        }
        self.limit.borrow().is_full(self.under_way.get())
            && user().is_some_and(|user| self.batcher.is_stranger(sale, &user))
    }

    /// A purchase asks for units. It is under way until what this returns is dropped.
    pub fn begin(&self) -> UnderWay<'_> {
        self.under_way.update(|count| count + 1);
        UnderWay(self)
    }

    async fn measure(shedder: Weak<Self>, first_asked: Rc<Notify>) {
        let mut quiet_ticks = QUIET_TICKS;
        loop {
            if quiet_ticks >= QUIET_TICKS {
                first_asked.notified().await;
            }
            let begun = Instant::now();
            let due = begun + TICK;
            tokio::time::sleep_until(due.into()).await;
            let Some(shedder) = shedder.upgrade() else { return };
            let now = Instant::now();
            quiet_ticks = if shedder.asked.take() { 0 } else { quiet_ticks + 1 };
            let late = now.saturating_duration_since(due).saturating_sub(TIMER_STEP);
            let wait = late + shedder.batcher.take_wait() + shedder.committer.wait();
            let mut limit = shedder.limit.borrow_mut();
            limit.adjust(shedder.under_way.get(), shedder.answered.take(), late, now - begun);
            if limit.is_near() || shedder.under_way.get() > 0 {
                // It goes on until all are answered and nothing is shed any more.
                quiet_ticks = quiet_ticks.min(QUIET_TICKS - 1);
            }
            shedder.batcher.learn_holders(limit.is_near());
            shedder.pressure.record(wait, now);
        }
    }
}

impl Drop for LoadShedder {
    fn drop(&mut self) {
        self.first_asked.notify_one();
    }
}
