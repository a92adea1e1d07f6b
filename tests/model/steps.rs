//! What each action does.

use stateright::{Model, Property};

use super::actions::Action;
use super::redis::Admission;
use super::state::{
    Guard, INSTANCES, Ledger, Left, Memory, ORDERS, Order, Phase, Purchase, Reconciler, Release, Server, SoldOut,
    State, Till, Wrong,
};
use super::variants::Shop;

impl Model for Shop {
    type State = State;
    type Action = Action;

    /// Epoch 1 was filled on run 1, which sells.
    fn init_states(&self) -> Vec<State> {
        let now = Memory { epoch: 1, phase: Phase::Open, stock: self.total, ..Memory::default() };
        let disk = if self.left.crashes > 0 { now.clone() } else { Memory::default() };
        vec![State {
            redis: Server { run: 1, loaded: true, now, disk, peer: (2, false) },
            ledger: Ledger {
                epoch: 1,
                run: 1,
                stock: self.total,
                purchases: Default::default(),
                orders: Default::default(),
                releases: Default::default(),
            },
            queue: [false; ORDERS],
            late: [0; ORDERS],
            tills: [Till::Idle; INSTANCES],
            guards: [Guard::Idle; INSTANCES],
            memories: [None; INSTANCES],
            reconciler: Reconciler::Idle,
            releaser: None,
            answered: [false; ORDERS],
            wrong: Wrong::default(),
            left: Left { ..self.left },
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.own_actions(state, actions);
        self.outer_actions(state, actions);
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

impl Shop {
    fn apply(&self, s: &mut State, action: Action) {
        match action {
            Action::Reserve(i, order) => self.reserve(s, i, order),
            Action::TellSoldOut(i, order) => {
                let memory = s.memories[i];
                s.wrong.holder_told_sold_out |= s.ledger.purchases[order] != Purchase::None;
                s.wrong.told_sold_out_with_stock |= memory.is_some_and(|memory| !memory.stock_was_0);
            }
            Action::Commit(_) | Action::LoseCommit(_) | Action::Answer(_) | Action::Confirm(_) => self.go_on(s, action),
            Action::CommitLate(order) => {
                s.ledger.insert(order, s.late[order]);
                s.late[order] = 0;
            }
            Action::DropLate(order) => s.late[order] = 0,

            Action::Relay(order) => {
                s.queue[order] = true;
                s.ledger.purchases[order] = Purchase::Sent;
            }
            Action::RelayAndDie(order) => {
                s.left.deaths -= 1;
                s.queue[order] = true;
            }
            Action::Resend(order) => s.ledger.purchases[order] = Purchase::Pending,
            Action::Fulfil(order) => {
                s.queue[order] = false;
                s.ledger.fulfil(self, order);
            }
            Action::FulfilUnacked(order) => {
                s.left.unacked -= 1;
                s.ledger.fulfil(self, order);
            }
            Action::PurgeQueue => {
                s.left.purges -= 1;
                s.queue = [false; ORDERS];
            }
            Action::Cancel(order) => {
                s.left.cancels -= 1;
                s.ledger.cancel(self, order);
            }
            Action::Release(order) => {
                if let Release::Pending { returns } = s.ledger.releases[order] {
                    s.releaser = s.redis.now.release(self, order, returns).map(|epoch| (order, epoch));
                }
            }
            Action::SettleRelease => {
                if let Some((order, epoch)) = s.releaser.take() {
                    s.ledger.settle_release(self, order, epoch);
                }
            }

            Action::ReconcileSee => s.reconciler = Reconciler::SawEpoch(s.redis.now.epoch),
            Action::ReconcileList(order) => {
                let Reconciler::SawEpoch(epoch) = s.reconciler else {
                    s.reconciler = Reconciler::Listed(order, s.redis.now.epoch);
                    return;
                };
                s.reconciler = Reconciler::Listed(order, epoch);
            }
            Action::ReconcileInsert => {
                if let Reconciler::Listed(order, epoch) = s.reconciler {
                    let durable = s.ledger.insert(order, epoch);
                    s.reconciler = if durable { Reconciler::Inserted(order) } else { Reconciler::Idle };
                }
            }
            Action::ReconcileConfirm => {
                if let Reconciler::Inserted(order) = s.reconciler {
                    s.redis.now.confirm(order);
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
            | Action::FindWhole(i)
            | Action::Load(i)
            | Action::Hangup(i) => s.guards[i] = self.refill(s, i),

            Action::Forget(i) => s.memories[i] = None,
            Action::LetReturn => s.redis.now.let_return(),

            Action::Die(i) => {
                s.left.deaths -= 1;
                (s.tills[i], s.guards[i], s.memories[i]) = (Till::Idle, Guard::Idle, None);
            }
            Action::DieWorkers => {
                s.left.deaths -= 1;
                (s.reconciler, s.releaser) = (Reconciler::Idle, None);
            }
            Action::Fsync => {
                s.left.fsyncs -= 1;
                s.redis.disk = s.redis.now.clone();
            }
            Action::Crash => self.crash(s),
            Action::Flush => {
                s.left.flushes -= 1;
                s.redis.now = Memory::default();
            }
        }
    }

    fn reserve(&self, s: &mut State, i: usize, order: Order) {
        s.left.asks[order] -= 1;
        let now = &mut s.redis.now;
        let admission = now.reserve(self, order);
        let stock_was_0 = now.stock == 0;
        let may_remember = now.may_remember(self, admission);
        s.memories[i] = may_remember.then_some(SoldOut { holders: now.holders, stock_was_0 });
        let stands = s.ledger.purchases[order] != Purchase::None;
        match admission {
            Admission::Reserved => {
                s.wrong.sold_twice |= s.ledger.has_ended(order);
                s.tills[i] = Till::Reserved(order, now.epoch);
                s.answered[order] |= self.variant.answer_before_commit;
            }
            Admission::Repeat { confirmed: false } => s.tills[i] = Till::Reserved(order, now.epoch),
            // The ledger says how it stands; were it not there, the answer would be 503.
            Admission::Repeat { confirmed: true } => s.answered[order] |= stands,
            Admission::SoldOut | Admission::TooFew => s.wrong.holder_told_sold_out |= stands,
            Admission::RepeatEnded | Admission::AtLimit => {}
        }
    }

    /// A purchase after its reservation.
    fn go_on(&self, s: &mut State, action: Action) {
        match action {
            Action::Commit(i) => {
                let Till::Reserved(order, epoch) = s.tills[i] else { return };
                let durable = s.ledger.insert(order, epoch);
                s.tills[i] = if durable { Till::Committed(order) } else { Till::Idle };
            }
            Action::LoseCommit(i) => {
                let Till::Reserved(order, epoch) = s.tills[i] else { return };
                s.left.unknowns -= 1;
                s.late[order] = epoch;
                s.tills[i] = Till::Idle;
                if self.variant.blind_revert {
                    s.redis.now.revert(self, order);
                }
            }
            Action::Answer(i) => {
                let Till::Committed(order) = s.tills[i] else { return };
                s.answered[order] = true;
                s.tills[i] = Till::Answered(order);
            }
            Action::Confirm(i) => {
                let Till::Answered(order) = s.tills[i] else { return };
                s.redis.now.confirm(order);
                s.tills[i] = Till::Idle;
            }
            _ => {}
        }
    }
}
