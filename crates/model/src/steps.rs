//! The effect of each action.

use stateright::{Model, Property};

use super::actions::Action;
use super::orders::ORDERS;
use super::state::{
    GroupStatus, Ledger, OutboxRow, Phase, PurchaseStep, ROWS, Reconciler, RefillStep, Release, SaleKeys, Server,
    Splitter, Stamp, State,
};
use super::variants::{Variant, World};

impl Model for World {
    type State = State;
    type Action = Action;

    /// At the start, epoch 1 is open on run 1.
    fn init_states(&self) -> Vec<State> {
        let stamp = Stamp { replid: 1, run: 1, read: 0 };
        let now = SaleKeys { epoch: 1, phase: Phase::Open, stamp, stock: self.total, ..SaleKeys::default() };
        let losses = self.budget.crashes + self.budget.takeovers + self.budget.splits;
        let disk = if losses > 0 { now.clone() } else { SaleKeys::default() };
        vec![State {
            redis: [Server { run: 1, replid: 1, second: false, read: 0, now, disk }, Server::default()],
            ledger: Ledger { epoch: 1, run: 1, stock: self.total, ..Ledger::default() },
            budget: self.budget,
            ..State::default()
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.system_actions(state, actions);
        self.outside_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        self.apply(&mut s, action);
        let comes_back = |order| last.ledger.has_ended(order) && !s.ledger.has_ended(order);
        s.violations.came_back |= (0..ORDERS).any(comes_back);
        (s != *last).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        super::properties::of(self)
    }
}

impl World {
    fn apply(&self, s: &mut State, action: Action) {
        match action {
            Action::Reserve(i, orders) => self.reserve(s, i, orders),
            Action::AnswerSoldOut(i, order) => {
                let cache = s.sold_out_caches[i];
                s.violations.sold_out_to_holder |= s.ledger.has_record(order);
                s.violations.sold_out_with_stock |= cache.is_some_and(|cache| !cache.stock_was_0);
            }
            Action::GoOn(i) => self.go_on(s, i),
            Action::BeginOneByOne(i) => self.begin_one_by_one(s, i),
            Action::LoseCommit(i) => self.lose_commit(s, i),
            Action::CommitLateInsert(orders, epoch) => {
                s.ledger.insert(self, orders, epoch);
                s.late_inserts.remove(&(orders, epoch));
            }
            Action::DropLateInsert(orders, epoch) => _ = s.late_inserts.remove(&(orders, epoch)),

            Action::Relay(row) => {
                s.queue[row] = true;
                s.ledger.outbox[row] = OutboxRow::Sent;
            }
            Action::RelayAndDie(row) => {
                s.budget.deaths -= 1;
                s.queue[row] = true;
            }
            Action::Resend(row) => s.ledger.outbox[row] = OutboxRow::Pending,
            Action::Fulfil(order @ 0..ORDERS) => {
                s.queue[order] = false;
                s.ledger.fulfil(self, order);
            }
            Action::Fulfil(row) => self.settle_group(s, row - ORDERS),
            Action::FulfilUnacked(order @ 0..ORDERS) => {
                s.budget.lost_acks -= 1;
                s.ledger.fulfil(self, order);
            }
            Action::FulfilUnacked(row) => {
                s.budget.lost_acks -= 1;
                s.ledger.settle_group(self, row - ORDERS);
            }
            Action::PurgeQueue => {
                s.budget.purges -= 1;
                s.queue = [false; ROWS];
            }
            Action::Cancel(order) => {
                s.budget.cancels -= 1;
                s.ledger.cancel(self, order);
            }
            Action::Release(master, order) => {
                if let Release::Pending { returns } = s.ledger.releases[order] {
                    let redis = &mut s.redis[master];
                    s.releaser = redis.begin_script(self).then(|| (order, redis.now.release(self, order, returns)));
                }
            }
            Action::SettleRelease => {
                if let Some((order, epoch)) = s.releaser.take() {
                    s.ledger.settle_release(self, order, epoch);
                }
            }

            Action::FailGroup(group) => {
                s.budget.poisons -= 1;
                s.splitter = Splitter::Failed(group);
            }
            Action::SplitGroup(group) => self.split_group(s, group),

            Action::ReconcileReadEpoch(master) => s.reconciler = Reconciler::ReadEpoch(s.redis[master].now.epoch),
            Action::ReconcileList(master, order) => {
                s.redis[master].begin_script(self);
                let now = s.redis[master].now.epoch;
                let epoch = if let Reconciler::ReadEpoch(epoch) = s.reconciler { epoch } else { now };
                s.reconciler = Reconciler::Listed(master, order, epoch);
            }
            Action::Reconcile => {
                s.reconciler = match s.reconciler {
                    Reconciler::Listed(master, order, epoch) if s.ledger.insert_one(order, epoch) => {
                        Reconciler::Inserted(master, order)
                    }
                    Reconciler::Inserted(master, order) => {
                        s.redis[master].now.confirm(order);
                        Reconciler::Idle
                    }
                    _ => Reconciler::Idle,
                };
            }
            Action::ReconcileKnown => {
                if let Reconciler::Listed(master, order, _) = s.reconciler {
                    s.reconciler = Reconciler::Inserted(master, order);
                }
            }
            Action::Refill(i) => s.refills[i] = self.refill(s, i),

            Action::ForgetSoldOut(i) => s.sold_out_caches[i] = None,
            Action::ReturnUnits(master) => s.redis[master].now.return_units(),

            Action::KillInstance(i) => {
                s.budget.deaths -= 1;
                (s.requests[i], s.refills[i], s.sold_out_caches[i]) = (PurchaseStep::Idle, RefillStep::Idle, None);
            }
            Action::KillWorkers => {
                s.budget.deaths -= 1;
                (s.reconciler, s.releaser, s.splitter) = (Reconciler::Idle, None, Splitter::Idle);
            }
            Action::Fsync => {
                s.budget.fsyncs -= 1;
                s.redis[0].disk = s.redis[0].now.clone();
            }
            Action::Crash => self.crash(s),
            Action::TakeOver => self.take_over(s),
            Action::NewId => {
                s.budget.new_ids -= 1;
                (s.redis[0].replid, s.redis[0].second) = (self.unused_id(s), false);
            }
            Action::Split => self.split(s),
            Action::Flush => {
                s.budget.flushes -= 1;
                s.redis[0].now = SaleKeys::default();
            }
        }
    }

    /// Settles a group. If a worker finds that impossible, it keeps the message.
    fn settle_group(&self, s: &mut State, group: usize) {
        if s.ledger.settle_group(self, group) || self.is(Variant::GroupNeverSplit) {
            s.queue[ORDERS + group] = false;
        } else if s.splitter == Splitter::Idle {
            s.splitter = Splitter::Failed(group);
        }
    }

    /// The message is not acknowledged here: it is delivered again, and then acknowledged because the group is closed.
    fn split_group(&self, s: &mut State, group: usize) {
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
