//! The actions of the model, and their conditions. Each names its rule and the code that it models.

use super::orders::{ORDERS, Order, Orders};
use super::state::{
    Budget, Epoch, INSTANCES, OutboxRow, Phase, PurchaseStep, ROWS, Reconciler, RefillStep, Release, Splitter, State,
    Status,
};
use super::variants::{Variant, World};

/// The number of an action is its instance, order or group. With two numbers, the instance comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    // ---- a purchase
    /// Rules 1, 2 and 13: buying::sale::purchase, redis::reserve, lua/reserve.lua. A call with requests, or with repeats of them.
    Reserve(usize, Orders),
    /// Rule 13: redis::reserve. A request that is answered "sold out" from memory.
    AnswerSoldOut(usize, Order),
    /// Rules 3 to 5: the next step of a call, after its `PurchaseStep`.
    GoOn(usize),
    /// Rule 4: the row of a group is refused, and its orders become groups of one, one by one.
    BeginOneByOne(usize),
    /// Rule 4: postgres::orders::committer, `Committed::Unknown`. The insert is in flight, and its sender has given up.
    LoseCommit(usize),
    /// Rule 3: an insert of a group arrives after its sender gave up.
    CommitLateInsert(Orders, Epoch),
    /// Rule 4: such a late insert never arrives.
    DropLateInsert(Orders, Epoch),

    // ---- from a group to its orders, and the end of an order
    /// Rule 6: buying::sale_work::relay. The message of an outbox row is published and confirmed, and the row is marked `sent`.
    Relay(usize),
    /// Rule 6: the message is published, and the relay dies before it marks the row.
    RelayAndDie(usize),
    /// Rule 6: postgres::outbox. A row that was sent but not processed becomes pending again.
    Resend(usize),
    /// Rule 7: buying::sale_work::fulfil; postgres::orders::one, or postgres::orders::groups. All orders of the row's group are made in one transaction.
    /// If that is impossible, a worker will split the group.
    Fulfil(usize),
    /// Rule 7: the same, but the acknowledgement is lost. The message is delivered again.
    FulfilUnacked(usize),
    /// Rule 6: the broker loses its messages.
    PurgeQueue,
    /// Rule 8: postgres::orders::cancel, for the buyer, the delayed message or the sweeper.
    Cancel(Order),
    /// Rule 9: buying::sale_work::release, lua/release.lua, at one of the servers.
    Release(usize, Order),
    /// Rule 9: postgres::outbox. The release row is done, if the epoch is still current.
    SettleRelease,

    // ---- a group that is split
    /// Rule 7: the transaction fails for a reason of its own, such as a member that cannot be written.
    FailGroup(usize),
    /// Rule 7: postgres::orders::groups. The group is closed, and its orders get groups of one. Only a broken variant does that in two steps.
    SplitGroup(usize),

    // ---- the work of a dead process
    /// Rule 12: the reconciler reads the epoch in a call of its own. Only a broken variant does so.
    ReconcileReadEpoch(usize),
    /// Rule 12: lua/read_unconfirmed.lua. The reconciler reads a hold together with its epoch.
    ReconcileList(usize, Order),
    /// Rule 12: buying::sale_work::reconcile, postgres::orders::commit, then lua/confirm.lua. When the reconciler looked, there was no record; by
    /// now there may be one.
    Reconcile,
    /// Rule 12: there is a record, and the reconciler writes none.
    ReconcileKnown,

    /// Rules 10 and 11: buying::sale_work::refill. The next step of an instance's refill, after its `RefillStep`; or the server of its connection
    /// is lost. The model has no refill lock: a lock may be lost.
    Refill(usize),

    // ---- time
    /// Rule 13: an instance's cached "sold out" expires.
    ForgetSoldOut(usize),
    /// Rule 13: `returning_at_ms` has passed. It is never earlier than the end of every cached "sold out".
    ReturnUnits(usize),

    // ---- faults
    /// An instance dies between any two of its steps.
    KillInstance(usize),
    /// The reconciler, the releaser, and a worker that is about to split a group die.
    KillWorkers,
    /// Redis writes its memory to disk. Between two of these, every write may be lost.
    Fsync,
    /// Rule 10: Redis crashes and restarts with the data on its disk.
    Crash,
    /// Rule 10: Redis is demoted, reads the memory of a lagging replica, and is promoted again.
    TakeOver,
    /// Rule 10: Redis changes its replication id and loses nothing: its first replica attaches, or its backlog expires.
    NewId,
    /// Rule 10: a lagging replica is promoted while its master keeps running.
    Split,
    /// Rule 10: the keys are deleted, and the server keeps running.
    Flush,
}

impl World {
    /// Whether this Redis server serves the ledger's epoch, on the ledger's run.
    pub(crate) fn is_complete(&self, s: &State, master: usize) -> bool {
        let redis = &s.redis[master];
        s.ledger.run == redis.run && redis.serves(self) && redis.now.epoch == s.ledger.epoch
    }

    /// Adds the actions of the system itself. They happen sooner or later.
    pub(crate) fn system_actions(&self, s: &State, out: &mut Vec<Action>) {
        let serving: Vec<usize> = s.masters().filter(|master| s.redis[*master].serves(self)).collect();
        for i in 0..INSTANCES {
            if s.requests[i] != PurchaseStep::Idle {
                out.push(Action::GoOn(i));
            }
            if s.sold_out_caches[i].is_some() {
                out.push(Action::ForgetSoldOut(i));
            }
            if self.can_refill(s, i) {
                out.push(Action::Refill(i));
            }
        }
        for (orders, epoch) in &s.late_inserts {
            out.extend([Action::CommitLateInsert(*orders, *epoch), Action::DropLateInsert(*orders, *epoch)]);
        }
        for row in 0..ROWS {
            match s.ledger.outbox[row] {
                OutboxRow::Pending => out.push(Action::Relay(row)),
                OutboxRow::Sent if !s.queue[row] && !self.is(Variant::NoResend) => out.push(Action::Resend(row)),
                OutboxRow::None | OutboxRow::Sent | OutboxRow::Processed => {}
            }
            if s.queue[row] {
                out.push(Action::Fulfil(row));
            }
        }
        match s.splitter {
            Splitter::Idle => {}
            Splitter::Failed(group) | Splitter::Closed(group) => out.push(Action::SplitGroup(group)),
        }
        for order in 0..ORDERS {
            if matches!(s.ledger.releases[order], Release::Pending { .. }) && s.releaser.is_none() {
                out.extend(serving.iter().map(|master| Action::Release(*master, order)));
            }
        }
        if s.releaser.is_some() {
            out.push(Action::SettleRelease);
        }
        match s.reconciler {
            Reconciler::Idle if self.is(Variant::NoReconciler) => {}
            Reconciler::Idle if self.is(Variant::ReconcileInTwoReads) => {
                let busy = |master: &&usize| s.redis[**master].now.unconfirmed.contains(&true);
                out.extend(serving.iter().filter(busy).map(|master| Action::ReconcileReadEpoch(*master)));
            }
            Reconciler::Idle | Reconciler::ReadEpoch(_) => {
                for master in &serving {
                    let listed = (0..ORDERS).filter(|order| s.redis[*master].now.unconfirmed[*order]);
                    out.extend(listed.map(|order| Action::ReconcileList(*master, order)));
                }
            }
            Reconciler::Listed(_, order, _) => {
                out.push(Action::Reconcile);
                if self.batch_max > 1 && s.ledger.has_record(order) {
                    out.push(Action::ReconcileKnown);
                }
            }
            Reconciler::Inserted(..) => out.push(Action::Reconcile),
        }
        for master in s.masters() {
            if s.redis[master].now.sold_out_granted && s.sold_out_caches.iter().all(Option::is_none) {
                out.push(Action::ReturnUnits(master));
            }
        }
    }

    /// Adds requests of buyers, and faults, within the budget.
    pub(crate) fn outside_actions(&self, s: &State, out: &mut Vec<Action>) {
        for i in 0..self.selling {
            let from_memory =
                |order| s.sold_out_caches[i].is_some_and(|cache| !self.knows_holder(&cache.holders, order));
            let refused = (0..ORDERS).filter(|order| self.budget.requests[*order] > 0 && from_memory(*order));
            out.extend(refused.map(|order| Action::AnswerSoldOut(i, order)));
            if s.requests[i] == PurchaseStep::Idle && s.redis[s.master_of(i)].serves(self) {
                let asks = |order| s.budget.requests[order] > 0 && !from_memory(order);
                let calls = Orders::up_to(self.batch_max).filter(|orders| orders.iter().all(asks));
                out.extend(calls.map(|orders| Action::Reserve(i, orders)));
            }
            if let PurchaseStep::Reserved { won, .. } = s.requests[i] {
                let is_group = won.len() > 1;
                if s.budget.lost_commits > 0 {
                    out.push(Action::LoseCommit(i));
                }
                if s.budget.refused_groups > 0 && is_group {
                    out.push(Action::BeginOneByOne(i));
                }
            }
        }
        for row in 0..ROWS {
            let (status, queued) = (s.ledger.outbox[row], s.queue[row]);
            if s.budget.deaths > 0 && status == OutboxRow::Pending && !queued {
                out.push(Action::RelayAndDie(row));
            }
            let group = row.checked_sub(ORDERS);
            let unsettled = group.filter(|_| queued && status != OutboxRow::Processed);
            let can_settle = unsettled.is_some_and(|group| s.ledger.can_settle(self, group));
            if s.budget.lost_acks > 0 && (group.is_none() && queued || can_settle) {
                out.push(Action::FulfilUnacked(row));
            }
            if let Some(group) = unsettled
                && s.budget.poisons > 0
                && s.splitter == Splitter::Idle
                && !self.is(Variant::GroupNeverSplit)
            {
                out.push(Action::FailGroup(group));
            }
        }
        if s.budget.cancels > 0 {
            let pending = (0..ORDERS).filter(|order| s.ledger.orders[*order] == Status::PendingPayment);
            out.extend(pending.map(Action::Cancel));
        }
        if s.budget.purges > 0 && s.queue.contains(&true) {
            out.push(Action::PurgeQueue);
        }
        if s.budget.deaths > 0 {
            let busy = |i: &usize| {
                s.requests[*i] != PurchaseStep::Idle
                    || s.refills[*i] != RefillStep::Idle
                    || s.sold_out_caches[*i].is_some()
            };
            out.extend((0..INSTANCES).filter(busy).map(Action::KillInstance));
            if s.reconciler != Reconciler::Idle || s.releaser.is_some() || s.splitter != Splitter::Idle {
                out.push(Action::KillWorkers);
            }
        }
        let Budget { crashes, takeovers, new_ids, splits, .. } = s.budget;
        let faults = [
            (crashes, Action::Crash),
            (takeovers, Action::TakeOver),
            (new_ids, Action::NewId),
            (splits, Action::Split),
        ];
        out.extend(faults.into_iter().filter(|(left, _)| *left > 0).map(|(_, fault)| fault));
        if crashes + takeovers + splits > 0 && s.budget.fsyncs > 0 && s.redis[0].disk != s.redis[0].now {
            out.push(Action::Fsync);
        }
        if s.budget.flushes > 0 && s.redis[0].now.phase != Phase::Missing {
            out.push(Action::Flush);
        }
    }

    /// Whether the buyer of this order is among the holders that an instance knows.
    fn knows_holder(&self, holders: &[bool; ORDERS], order: Order) -> bool {
        (0..ORDERS).any(|other| holders[other] && self.buyer(other) == self.buyer(order))
    }
}
