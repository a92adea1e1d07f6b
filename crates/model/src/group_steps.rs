//! A group is settled as a whole or split (rule 7). Workers may die between any two steps, and two workers may have the same group.

use super::orders::ORDERS;
use super::state::{GroupStatus, OutboxRow, Splitter, State};
use super::variants::{Variant, World};

impl World {
    /// Settles a group. If a worker finds that impossible, it keeps the message.
    pub fn settle_group(&self, s: &mut State, group: usize) {
        if s.ledger.settle_group(self, group) || self.is(Variant::GroupNeverSplit) {
            s.queue[ORDERS + group] = false;
        } else if s.splitter == Splitter::Idle {
            s.splitter = Splitter::Failed(group);
        }
    }

    /// The message is not acknowledged here: it is delivered again, and then acknowledged because the group is closed.
    pub fn split_group(&self, s: &mut State, group: usize) {
        if std::mem::take(&mut s.splitter) == Splitter::Closed(group) {
            return s.ledger.insert_rows_of(group);
        }
        let is_closed = s.ledger.outbox[ORDERS + group] == OutboxRow::Processed;
        if self.is(Variant::SettlePart) && !is_closed {
            s.ledger.settle_part(self, group);
        } else if self.is(Variant::SplitInTwoTransactions) && !is_closed {
            s.ledger.close_group(group, GroupStatus::Split);
            s.splitter = Splitter::Closed(group);
        } else {
            s.ledger.split_group(self, group);
        }
    }
}
