//! Winners become durable: the commit lines of the instances, PostgreSQL's flushes, and the answer of a synchronous standby.

use super::step::{Buyer, Commit, Flushing, Step};
use super::system::System;
use crate::engine::nanos;

/// `purchase.commit_batch_max`: a commit takes whole groups until it has so many winners.
const COMMIT_MAX: usize = 256;

/// Settling gives way to purchases until it has been behind for so long.
const SETTLE_BY_S: f64 = 5.0;

impl System<'_> {
    /// Winners of a call wait for their commit.
    pub(super) fn wait_for_commit(&mut self, instance: usize, winners: Vec<Buyer>) {
        let of = &mut self.instances[instance];
        of.waiting += winners.len();
        of.groups.push_back(winners);
        self.commit(instance);
    }

    /// Begins commits while groups wait and one of the instance's lanes is idle.
    fn commit(&mut self, instance: usize) {
        let of = &mut self.instances[instance];
        while !of.groups.is_empty()
            && let Some(lane) = of.idle.pop()
        {
            let (mut groups, mut winners) = (Vec::new(), 0);
            while winners < COMMIT_MAX
                && let Some(group) = of.groups.pop_front()
            {
                winners += group.len();
                groups.push(group);
            }
            of.waiting -= winners;
            self.seen.commits += 1;
            self.seen.committed += winners as u64;
            self.engine.after(self.hop, Step::Inserting(Commit { instance, lane, groups, winners }));
        }
    }

    pub(super) fn inserting(&mut self, commit: Commit) {
        let us = self.rush.costs.commit_us + commit.winners as f64 * self.rush.costs.row_us;
        let backend = self.instances[commit.instance].backends[commit.lane];
        self.engine.run(backend, nanos(us), Step::Inserted(commit));
    }

    pub(super) fn flush(&mut self, what: Flushing) {
        self.flush.waiting.push(what);
        if !self.flush.is_busy {
            self.start_flush();
        }
    }

    fn start_flush(&mut self) {
        self.flush.is_busy = true;
        self.flush.under_way = std::mem::take(&mut self.flush.waiting);
        self.engine.after(nanos(self.rush.assumed.flush_us), Step::Flushed);
    }

    /// What was flushed is durable here. Commits wait for the standby without holding up the next flush.
    pub(super) fn flushed(&mut self) {
        for what in std::mem::take(&mut self.flush.under_way) {
            self.engine.after(nanos(self.rush.assumed.standby_us), Step::Durable(what));
        }
        self.flush.is_busy = false;
        if !self.flush.waiting.is_empty() {
            self.start_flush();
        }
    }

    /// The instance hears of its commit, and answers the winners.
    pub(super) fn committed(&mut self, commit: Commit) {
        let Commit { instance, lane, groups, winners } = commit;
        self.instances[instance].idle.push(lane);
        let half_us = (self.rush.costs.bought_us - self.rush.costs.memory_us) / 2.0;
        for group in groups {
            let Some(thread) = group.first().map(|buyer| self.threads[buyer.thread as usize].id) else { continue };
            self.engine.run(thread, nanos(group.len() as f64 * half_us), Step::Won(group));
        }
        if self.settling.add(winners as u64) {
            // Settling gives way to purchases, for so long at most.
            self.engine.after(nanos(SETTLE_BY_S * 1e6), Step::Settle);
        }
        self.settle();
        self.commit(instance);
    }
}
