//! A refill, step by step, and what it is for: the crash of a server.

use super::actions::Action;
use super::state::{Guard, Memory, State};
use super::variants::Shop;

impl Shop {
    /// What a guard does next.
    pub fn guard_actions(&self, s: &State, i: usize, out: &mut Vec<Action>) {
        let redis_step = |run, action| if s.redis.run == run { action } else { Action::Hangup(i) };
        let may_open = self.variant.open_before_memories_lapse || s.memories.iter().all(Option::is_none);
        match s.guards[i] {
            Guard::Idle if i >= self.guards => {}
            Guard::Idle if self.is_whole(s) || (self.variant.load_on_demand && !s.redis.loaded) => {
                if !s.redis.loaded {
                    out.push(Action::FindWhole(i));
                }
            }
            Guard::Idle if s.ledger.epoch < self.last_epoch => out.push(Action::Close(i)),
            Guard::Idle => {}
            Guard::Closed(_) => out.push(Action::Raise(i)),
            Guard::Raised(..) => out.push(Action::Snapshot(i)),
            Guard::Read(run, ..) => out.push(redis_step(run, Action::Begin(i))),
            Guard::Begun(run, ..) => out.push(redis_step(run, Action::Put(i))),
            Guard::Put(run, ..) if may_open => out.push(redis_step(run, Action::Open(i))),
            Guard::Put(..) => {}
            Guard::Opened(..) => out.push(Action::Record(i)),
            Guard::Whole(run) => out.push(redis_step(run, Action::Load(i))),
        }
    }

    /// The next step of a guard, and where it is afterwards. A step that another fill has overtaken ends the refill.
    pub fn refill(&self, s: &mut State, i: usize) -> Guard {
        let may_load = !s.redis.loaded && (self.is_whole(s) || self.variant.load_on_demand);
        let (run, now, ledger) = (s.redis.run, &mut s.redis.now, &mut s.ledger);
        let same_run = |of: u8| of == run;
        match s.guards[i] {
            Guard::Idle if may_load => Guard::Whole(run),
            Guard::Idle => {
                now.close(ledger.epoch);
                Guard::Closed(run)
            }
            Guard::Closed(of) => Guard::Raised(of, ledger.raise(self)),
            Guard::Raised(of, epoch) => Guard::Read(of, epoch, ledger.snapshot(self)),
            Guard::Read(of, epoch, from) if same_run(of) && now.begin(self, epoch) => Guard::Begun(of, epoch, from),
            Guard::Begun(of, epoch, from) if same_run(of) && now.put(epoch, &from) => Guard::Put(of, epoch, from),
            Guard::Put(of, epoch, from) if same_run(of) && now.open(epoch, &from) => Guard::Opened(of, epoch),
            Guard::Opened(of, epoch) => {
                ledger.record(epoch, of);
                Guard::Idle
            }
            Guard::Whole(of) if same_run(of) => {
                s.redis.loaded = true;
                Guard::Idle
            }
            _ => Guard::Idle,
        }
    }

    /// What was not on disk is lost, and the script cache is empty: that is what the fence relies on.
    pub fn crash(&self, s: &mut State) {
        s.left.crashes -= 1;
        let redis = &mut s.redis;
        redis.now = redis.disk.clone();
        if self.variant.promoted_with_cache {
            let promoted = std::mem::replace(&mut redis.peer, (redis.run, redis.loaded));
            (redis.run, redis.loaded) = promoted;
        } else {
            (redis.run, redis.loaded) = (redis.run + 1, false);
        }
        if s.left.crashes == 0 {
            redis.disk = Memory::default(); // nobody will read it any more
        }
    }
}
