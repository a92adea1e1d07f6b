//! Sheds purchases of a worker thread that has more of them than it can serve, so that the others do not wait long. It goes
//! by how long purchases wait: for the thread itself, for Redis and for their commit.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::domain::ids::SaleId;
use crate::domain::pressure::Pressure;
use crate::domain::shedding::{ShedShare, TICK};
use crate::gate::reserve_batcher::ReserveBatcher;
use crate::ledger::orders::commit::Committer;

/// Timers are that late on an idle thread.
const TIMER_STEP: Duration = Duration::from_millis(2);
/// Without a purchase for so many ticks, nobody waits, and nothing is measured until the next one.
const QUIET_TICKS: u32 = 10;

/// The shedder of one worker thread.
pub struct LoadShedder {
    batcher: ReserveBatcher,
    committer: Committer,
    pressure: Arc<Pressure>,
    share: RefCell<ShedShare>,
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
        let (share, first_asked) = (RefCell::new(ShedShare::new(wait_target)), Rc::<Notify>::default());
        let asked = Cell::default();
        let shedder =
            Rc::new(Self { batcher, committer, pressure, share, asked, first_asked: Rc::clone(&first_asked) });
        tokio::task::spawn_local(Self::measure(Rc::downgrade(&shedder), first_asked));
        shedder
    }

    /// Whether to refuse this purchase unread. Never one of a buyer who may hold a ticket: `user` is asked for only while
    /// purchases are shed.
    pub fn sheds(&self, sale: SaleId, user: impl FnOnce() -> Option<String>) -> bool {
        if !self.asked.replace(true) {
            self.first_asked.notify_one();
        }
        let mut share = self.share.borrow_mut();
        share.is_shedding() && user().is_some_and(|user| self.batcher.is_stranger(sale, &user)) && share.sheds_next()
    }

    async fn measure(shedder: Weak<Self>, first_asked: Rc<Notify>) {
        let mut quiet_ticks = QUIET_TICKS;
        loop {
            if quiet_ticks >= QUIET_TICKS {
                first_asked.notified().await;
            }
            let due = Instant::now() + TICK;
            tokio::time::sleep_until(due.into()).await;
            let Some(shedder) = shedder.upgrade() else { return };
            let now = Instant::now();
            quiet_ticks = if shedder.asked.take() { 0 } else { quiet_ticks + 1 };
            let late = now.saturating_duration_since(due).saturating_sub(TIMER_STEP);
            let wait = late + shedder.batcher.take_wait() + shedder.committer.wait();
            let mut share = shedder.share.borrow_mut();
            share.adjust(if quiet_ticks < QUIET_TICKS { wait } else { Duration::ZERO });
            if share.is_shedding() {
                // It goes on until nothing is shed any more, purchases or not.
                quiet_ticks = quiet_ticks.min(QUIET_TICKS - 1);
            }
            shedder.batcher.learn_holders(share.is_shedding());
            shedder.pressure.record(wait, now);
        }
    }
}

impl Drop for LoadShedder {
    fn drop(&mut self) {
        self.first_asked.notify_one();
    }
}
