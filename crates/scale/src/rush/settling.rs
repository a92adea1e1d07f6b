//! What becomes of a winner after the 202: workers settle purchases in batches, through the broker, into PostgreSQL.

use super::step::{Batch, Flushing, Step};
use super::system::System;
use crate::engine::nanos;

/// `orders.batch_max`: orders in one transaction.
const BATCH_MAX: u64 = 250;

impl System<'_> {
    /// The workers give way no longer: they have for long enough, or nobody buys any more.
    pub(super) fn settle_from_now_on(&mut self) {
        self.settling.is_let = true;
        self.settle();
    }

    /// Begins batches, while there are purchases to settle and a loop that is idle.
    pub(super) fn settle(&mut self) {
        let us = self.rush.costs.settled.work_us;
        while self.settling.is_let
            && self.settling.backlog > 0
            && let Some(on) = self.settling.idle.pop()
        {
            let orders = self.settling.backlog.min(BATCH_MAX);
            self.settling.backlog -= orders;
            self.settling.first_begun.get_or_insert(self.engine.now());
            self.engine.run(self.settling.threads[on], nanos(us * orders as f64), Step::Worked(Batch { on, orders }));
        }
    }

    pub(super) fn worked(&mut self, batch: Batch) {
        let broker = self.settling.broker[batch.on % self.settling.broker.len()];
        let us = self.rush.costs.settled.broker_us * batch.orders as f64;
        self.engine.run(broker, nanos(us), Step::Carried(batch));
    }

    pub(super) fn carried(&mut self, batch: Batch) {
        let us = self.rush.costs.settled.postgres_us * batch.orders as f64;
        self.engine.run(self.settling.backends[batch.on], nanos(us), Step::Written(batch));
    }

    /// The batch takes the sale's row, last of all (rule 7 of docs/protocol.md), and is committed.
    pub(super) fn written(&mut self, batch: Batch) {
        if std::mem::take(&mut self.settling.has_row) {
            self.flush(Flushing::Settled(batch));
        } else {
            self.settling.wait_for_row.push_back(batch);
        }
    }

    pub(super) fn settled(&mut self, batch: Batch) {
        let of = &mut self.settling;
        of.settled += batch.orders;
        of.last_settled = self.engine.now();
        of.idle.push(batch.on);
        match of.wait_for_row.pop_front() {
            Some(next) => self.flush(Flushing::Settled(next)),
            None => of.has_row = true,
        }
        self.settle();
    }
}
