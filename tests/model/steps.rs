//! The effect of each action.

use stateright::{Model, Property};

use super::actions::Action;
use super::redis::Admission;
use super::state::{
    Budget, INSTANCES, Ledger, ORDERS, Order, Phase, PurchaseRow, PurchaseStep, Reconciler, RefillStep, Release,
    SaleKeys, Server, SoldOutCache, Stamp, State, Violations,
};
use super::variants::World;

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
            ledger: Ledger {
                epoch: 1,
                run: 1,
                stock: self.total,
                purchase_rows: Default::default(),
                orders: Default::default(),
                releases: Default::default(),
            },
            queue: [false; ORDERS],
            late_inserts: [0; ORDERS],
            requests: [PurchaseStep::Idle; INSTANCES],
            refills: [RefillStep::Idle; INSTANCES],
            sold_out_caches: [None; INSTANCES],
            reconciler: Reconciler::Idle,
            releaser: None,
            accepted: [false; ORDERS],
            violations: Violations::default(),
            budget: Budget { ..self.budget },
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.system_actions(state, actions);
        self.outside_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        self.apply(&mut s, action);
        (s != *last).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        super::properties::of(self)
    }
}

impl World {
    fn apply(&self, s: &mut State, action: Action) {
        match action {
            Action::Reserve(i, order) => self.reserve(s, i, order),
            Action::AnswerSoldOut(i, order) => {
                let cache = s.sold_out_caches[i];
                s.violations.sold_out_to_holder |= s.ledger.purchase_rows[order] != PurchaseRow::None;
                s.violations.sold_out_with_stock |= cache.is_some_and(|cache| !cache.stock_was_0);
            }
            Action::Commit(_) | Action::LoseCommit(_) | Action::Answer(_) | Action::Confirm(_) => {
                self.finish_purchase(s, action);
            }
            Action::CommitLateInsert(order) => {
                s.ledger.insert(order, s.late_inserts[order]);
                s.late_inserts[order] = 0;
            }
            Action::DropLateInsert(order) => s.late_inserts[order] = 0,

            Action::Relay(order) => {
                s.queue[order] = true;
                s.ledger.purchase_rows[order] = PurchaseRow::Sent;
            }
            Action::RelayAndDie(order) => {
                s.budget.deaths -= 1;
                s.queue[order] = true;
            }
            Action::Resend(order) => s.ledger.purchase_rows[order] = PurchaseRow::Pending,
            Action::Fulfil(order) => {
                s.queue[order] = false;
                s.ledger.fulfil(self, order);
            }
            Action::FulfilUnacked(order) => {
                s.budget.lost_acks -= 1;
                s.ledger.fulfil(self, order);
            }
            Action::PurgeQueue => {
                s.budget.purges -= 1;
                s.queue = [false; ORDERS];
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

            Action::ReconcileReadEpoch(master) => s.reconciler = Reconciler::ReadEpoch(s.redis[master].now.epoch),
            Action::ReconcileList(master, order) => {
                s.redis[master].begin_script(self);
                let Reconciler::ReadEpoch(epoch) = s.reconciler else {
                    s.reconciler = Reconciler::Listed(master, order, s.redis[master].now.epoch);
                    return;
                };
                s.reconciler = Reconciler::Listed(master, order, epoch);
            }
            Action::ReconcileInsert => {
                if let Reconciler::Listed(master, order, epoch) = s.reconciler {
                    let durable = s.ledger.insert(order, epoch);
                    s.reconciler = if durable { Reconciler::Inserted(master, order) } else { Reconciler::Idle };
                }
            }
            Action::ReconcileConfirm => {
                if let Reconciler::Inserted(master, order) = s.reconciler {
                    s.redis[master].now.confirm(order);
                    s.reconciler = Reconciler::Idle;
                }
            }

            Action::Close(i)
            | Action::Raise(i)
            | Action::Snapshot(i)
            | Action::Begin(i)
            | Action::Put(i)
            | Action::Open(i)
            | Action::Record(i)
            | Action::LoseConnection(i) => s.refills[i] = self.refill(s, i),

            Action::ForgetSoldOut(i) => s.sold_out_caches[i] = None,
            Action::ReturnUnits(master) => s.redis[master].now.return_units(),

            Action::KillInstance(i) => {
                s.budget.deaths -= 1;
                (s.requests[i], s.refills[i], s.sold_out_caches[i]) = (PurchaseStep::Idle, RefillStep::Idle, None);
            }
            Action::KillWorkers => {
                s.budget.deaths -= 1;
                (s.reconciler, s.releaser) = (Reconciler::Idle, None);
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

    fn reserve(&self, s: &mut State, i: usize, order: Order) {
        s.budget.requests[order] -= 1;
        let master = s.master_of(i);
        s.redis[master].begin_script(self);
        let now = &mut s.redis[master].now;
        let admission = now.reserve(self, order);
        let stock_was_0 = now.stock == 0;
        let may_remember = now.may_remember(self, admission);
        s.sold_out_caches[i] = may_remember.then_some(SoldOutCache { holders: now.holders, stock_was_0 });
        let stands = s.ledger.purchase_rows[order] != PurchaseRow::None;
        match admission {
            Admission::Reserved => {
                s.violations.sold_twice |= s.ledger.has_ended(order);
                s.requests[i] = PurchaseStep::Reserved(order, now.epoch);
                s.accepted[order] |= self.variant.answer_before_commit;
            }
            Admission::Repeat { confirmed: false } => s.requests[i] = PurchaseStep::Reserved(order, now.epoch),
            // The ledger has the status. If it had no row, the answer would be 503.
            Admission::Repeat { confirmed: true } => s.accepted[order] |= stands,
            Admission::SoldOutCache | Admission::TooFew => s.violations.sold_out_to_holder |= stands,
            Admission::RepeatEnded | Admission::AtLimit | Admission::Lapsed => {}
        }
    }

    /// The steps of a purchase after its reservation.
    fn finish_purchase(&self, s: &mut State, action: Action) {
        match action {
            Action::Commit(i) => {
                let PurchaseStep::Reserved(order, epoch) = s.requests[i] else { return };
                let durable = s.ledger.insert(order, epoch);
                s.requests[i] = if durable { PurchaseStep::Committed(order) } else { PurchaseStep::Idle };
            }
            Action::LoseCommit(i) => {
                let PurchaseStep::Reserved(order, epoch) = s.requests[i] else { return };
                s.budget.lost_commits -= 1;
                s.late_inserts[order] = epoch;
                s.requests[i] = PurchaseStep::Idle;
                if self.variant.blind_revert {
                    let master = s.master_of(i);
                    s.redis[master].now.revert(self, order);
                }
            }
            Action::Answer(i) => {
                let PurchaseStep::Committed(order) = s.requests[i] else { return };
                s.accepted[order] = true;
                s.requests[i] = PurchaseStep::Accepted(order);
            }
            Action::Confirm(i) => {
                let PurchaseStep::Accepted(order) = s.requests[i] else { return };
                let master = s.master_of(i);
                s.redis[master].now.confirm(order);
                s.requests[i] = PurchaseStep::Idle;
            }
            _ => {}
        }
    }
}
