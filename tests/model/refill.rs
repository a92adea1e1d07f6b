//! The steps of a refill (rules 10 and 11), and the crash of a Redis server, after which it is needed.

use super::actions::Action;
use super::state::{RefillStep, SaleKeys, State};
use super::variants::World;

impl World {
    /// Adds the next step of this instance's refill.
    pub fn refill_actions(&self, s: &State, i: usize, out: &mut Vec<Action>) {
        let redis_step = |run, action| if s.redis.run == run { action } else { Action::LoseConnection(i) };
        let may_open = self.variant.open_before_memories_lapse || s.sold_out_caches.iter().all(Option::is_none);
        match s.refills[i] {
            RefillStep::Idle if i >= self.refilling => {}
            RefillStep::Idle if self.is_complete(s) || (self.variant.load_on_demand && !s.redis.loaded) => {
                if !s.redis.loaded {
                    out.push(Action::FindComplete(i));
                }
            }
            RefillStep::Idle if s.ledger.epoch < self.max_epoch => out.push(Action::Close(i)),
            RefillStep::Idle => {}
            RefillStep::Closed(_) => out.push(Action::Raise(i)),
            RefillStep::Raised(..) => out.push(Action::Snapshot(i)),
            RefillStep::Read(run, ..) => out.push(redis_step(run, Action::Begin(i))),
            RefillStep::Begun(run, ..) => out.push(redis_step(run, Action::Put(i))),
            RefillStep::Put(run, ..) if may_open => out.push(redis_step(run, Action::Open(i))),
            RefillStep::Put(..) => {}
            RefillStep::Opened(..) => out.push(Action::Record(i)),
            RefillStep::Complete(run) => out.push(redis_step(run, Action::LoadReserve(i))),
        }
    }

    /// Takes the next step of this instance's refill, and returns where the refill then is. A step that another refill has
    /// overtaken ends it.
    pub fn refill(&self, s: &mut State, i: usize) -> RefillStep {
        let may_load = !s.redis.loaded && (self.is_complete(s) || self.variant.load_on_demand);
        let (run, now, ledger) = (s.redis.run, &mut s.redis.now, &mut s.ledger);
        let same_run = |of: u8| of == run;
        match s.refills[i] {
            RefillStep::Idle if may_load => RefillStep::Complete(run),
            RefillStep::Idle => {
                now.close(ledger.epoch);
                RefillStep::Closed(run)
            }
            RefillStep::Closed(of) => RefillStep::Raised(of, ledger.raise(self)),
            RefillStep::Raised(of, epoch) => RefillStep::Read(of, epoch, ledger.snapshot(self)),
            RefillStep::Read(of, epoch, from) if same_run(of) && now.begin(self, epoch) => {
                RefillStep::Begun(of, epoch, from)
            }
            RefillStep::Begun(of, epoch, from) if same_run(of) && now.put(epoch, &from) => {
                RefillStep::Put(of, epoch, from)
            }
            RefillStep::Put(of, epoch, from) if same_run(of) && now.open(epoch, &from) => RefillStep::Opened(of, epoch),
            RefillStep::Opened(of, epoch) => {
                ledger.record(epoch, of);
                RefillStep::Idle
            }
            RefillStep::Complete(of) if same_run(of) => {
                s.redis.loaded = true;
                RefillStep::Idle
            }
            _ => RefillStep::Idle,
        }
    }

    /// Loses the writes that are not on disk, and empties the script cache, on which the fence relies (rule 10).
    pub fn crash(&self, s: &mut State) {
        s.budget.crashes -= 1;
        let redis = &mut s.redis;
        redis.now = redis.disk.clone();
        if self.variant.promoted_with_cache {
            let promoted = std::mem::replace(&mut redis.replica, (redis.run, redis.loaded));
            (redis.run, redis.loaded) = promoted;
        } else {
            (redis.run, redis.loaded) = (redis.run + 1, false);
        }
        if s.budget.crashes == 0 {
            redis.disk = SaleKeys::default(); // not read again: there is no crash to come
        }
    }
}
