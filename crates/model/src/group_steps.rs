//! The life of groups (rules 6 and 7): a group is relayed, then settled as a whole or split. Workers may die between any two steps, and
//! two workers may have the same group.

use super::actions::Action;
use super::state::{GROUPS, GroupStatus, OutboxRow, Splitter, State};
use super::variants::{Variant, World};

impl World {
    /// Adds the actions of the system itself on groups.
    pub fn group_actions(&self, s: &State, out: &mut Vec<Action>) {
        if !s.late_group.0.is_empty() {
            out.extend([Action::CommitLateGroup, Action::DropLateGroup]);
        }
        for group in 0..GROUPS {
            let queued = s.group_queue[group];
            match s.ledger.groups[group].outbox_row {
                OutboxRow::Pending => out.push(Action::RelayGroup(group)),
                OutboxRow::Sent if !queued && !self.is(Variant::NoResend) => out.push(Action::ResendGroup(group)),
                OutboxRow::None | OutboxRow::Sent | OutboxRow::Processed => {}
            }
            if queued {
                out.push(Action::SettleGroup(group));
            }
        }
        match s.splitter {
            Splitter::Idle => {}
            Splitter::Failed(group) => out.push(Action::SplitGroup(group)),
            Splitter::Closed(group) => out.push(Action::InsertSplitRows(group)),
        }
    }

    /// Adds faults of groups, within the budget.
    pub fn group_faults(&self, s: &State, out: &mut Vec<Action>) {
        for group in 0..GROUPS {
            let (row, queued) = (s.ledger.groups[group].outbox_row, s.group_queue[group]);
            if s.budget.deaths > 0 && row == OutboxRow::Pending && !queued {
                out.push(Action::RelayGroupAndDie(group));
            }
            let unsettled = queued && row != OutboxRow::Processed;
            if s.budget.lost_acks > 0 && unsettled && s.ledger.can_settle(self, group) {
                out.push(Action::SettleGroupUnacked(group));
            }
            if s.budget.poisons > 0 && unsettled && s.splitter == Splitter::Idle && !self.is(Variant::GroupNeverSplit) {
                out.push(Action::FailGroup(group));
            }
        }
    }

    /// Settles a group. If a worker finds that impossible, it keeps the message.
    pub fn settle_group(&self, s: &mut State, group: usize) {
        if s.ledger.settle_group(self, group) || self.is(Variant::GroupNeverSplit) {
            s.group_queue[group] = false;
        } else if s.splitter == Splitter::Idle {
            s.splitter = Splitter::Failed(group);
        }
    }

    /// The message is not acknowledged here: it is delivered again, and then acknowledged because the group is closed.
    pub fn split_group(&self, s: &mut State, group: usize) {
        s.splitter = Splitter::Idle;
        let is_closed = s.ledger.groups[group].outbox_row == OutboxRow::Processed;
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
