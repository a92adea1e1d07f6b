//! The steps of a refill (rules 10 and 11), and the losses of a Redis server that make it necessary.

use super::state::{RefillStep, SaleKeys, Server, State};
use super::variants::{Variant, World};

impl World {
    /// Whether this instance's refill has a next step.
    pub(crate) fn can_refill(&self, s: &State, i: usize) -> bool {
        match s.refills[i] {
            RefillStep::Idle => {
                i < self.refilling && s.ledger.epoch < self.max_epoch && !self.is_complete(s, s.master_of(i))
            }
            RefillStep::Put(..) => {
                self.is(Variant::OpenBeforeMemoriesLapse) || s.sold_out_caches.iter().all(Option::is_none)
            }
            _ => true,
        }
    }

    /// Takes the next step of this instance's refill, and returns the refill's new step. It ends if another refill has overtaken it,
    /// or the server of its connection is lost.
    pub(crate) fn refill(&self, s: &mut State, i: usize) -> RefillStep {
        let master = s.master_of(i);
        let (redis, ledger) = (&mut s.redis[master], &mut s.ledger);
        let (run, stamp) = (redis.run, redis.stamp());
        let same_run = |of: u8| of == run;
        match s.refills[i] {
            // lua/begin_refill.lua with "close".
            RefillStep::Idle => {
                redis.now.close(ledger.epoch);
                RefillStep::Closed(run)
            }
            // postgres::sales::epochs: the epoch rises in PostgreSQL, and then one snapshot is read.
            RefillStep::Closed(of) => RefillStep::Raised(of, ledger.raise(self)),
            RefillStep::Raised(of, epoch) => RefillStep::Read(of, epoch, ledger.snapshot(self)),
            RefillStep::Read(of, epoch, from) if same_run(of) && redis.now.begin(self, epoch, stamp) => {
                RefillStep::Begun(of, epoch, from)
            }
            RefillStep::Begun(of, epoch, from) if same_run(of) && redis.now.put(epoch, &from) => {
                RefillStep::Put(of, epoch, from)
            }
            // postgres::sales::epochs: the run id is recorded with the epoch.
            RefillStep::Put(of, epoch, from) if ledger.record(epoch, of) => RefillStep::Recorded(of, epoch, from),
            RefillStep::Recorded(of, epoch, from) if same_run(of) => {
                redis.open(self, epoch, &from);
                RefillStep::Idle
            }
            _ => RefillStep::Idle,
        }
    }

    /// A replication id that is neither the server's nor that of any opened sale.
    pub(crate) fn unused_id(&self, s: &State) -> u8 {
        let ids = |server: &Server| [server.replid, server.now.stamp.replid, server.disk.stamp.replid];
        let used = s.redis.each_ref().map(ids).concat();
        (1..).find(|id| !used.contains(id)).unwrap_or_default()
    }

    /// The server crashes and restarts: writes that are not on disk are lost.
    pub(crate) fn crash(&self, s: &mut State) {
        s.budget.crashes -= 1;
        let id = self.unused_id(s);
        let redis = &mut s.redis[0];
        redis.now = redis.disk.clone();
        (redis.run, redis.replid, redis.second, redis.read) = (redis.run + 1, id, false, 0);
        self.drop_disk(s);
    }

    /// The server is demoted, reads the memory of a lagging replica, and is promoted again.
    pub(crate) fn take_over(&self, s: &mut State) {
        s.budget.takeovers -= 1;
        let id = self.unused_id(s);
        let redis = &mut s.redis[0];
        redis.now = redis.disk.clone();
        (redis.replid, redis.second, redis.read) = (id, true, redis.read + 1);
        self.drop_disk(s);
    }

    /// A lagging replica is promoted, and its former master keeps running.
    pub(crate) fn split(&self, s: &mut State) {
        s.budget.splits -= 1;
        let (replid, now) = (self.unused_id(s), s.redis[0].disk.clone());
        s.redis[1] = Server { run: 100, replid, second: true, read: 1, now, disk: SaleKeys::default() };
        self.drop_disk(s);
    }

    fn drop_disk(&self, s: &mut State) {
        if s.budget.crashes + s.budget.takeovers + s.budget.splits == 0 {
            s.redis[0].disk = SaleKeys::default(); // not read again
        }
    }
}
