//! What can happen, and when. Each action names its rule and the function that carries it out.

use super::state::{Guard, INSTANCES, ORDERS, Order, Phase, Purchase, Reconciler, Release, State, Status, Till};
use super::variants::Shop;

/// The first number is the instance, where there is one; the last the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    // ---- a purchase
    /// Rules 1, 2 and 13: sale::purchase::purchase, gate::desk, lua/reserve.lua. A request, or its repeat.
    Reserve(usize, Order),
    /// Rule 13: sale::purchase::knows_sold_out. A request that is answered from memory.
    TellSoldOut(usize, Order),
    /// Rules 3 and 4: ledger::commit::insert_purchases. Durable, or refused by the epoch.
    Commit(usize),
    /// Rule 4: ledger::commit::Lane::write, `Committed::Unknown`. The insert is under way, and nobody waits for it.
    LoseCommit(usize),
    /// Rule 3: an insert that arrives after its sender gave up.
    CommitLate(Order),
    /// ... or never arrives.
    DropLate(Order),
    /// Rule 3: sale::purchase::purchase. The 202 leaves.
    Answer(usize),
    /// Rule 5: sale::purchase::Confirmer, lua/confirm.lua.
    Confirm(usize),

    // ---- from the row to the order, and its end
    /// Rule 6: sale::deliver::Relay::step. Published, confirmed, marked `sent`.
    Relay(Order),
    /// Rule 6: ... and dead before it was marked.
    RelayAndDie(Order),
    /// Rule 6: ledger::outbox::resend_unsettled.
    Resend(Order),
    /// Rule 7: sale::fulfil::settle, ledger::fulfil::fulfil.
    Fulfil(Order),
    /// Rule 7: ... whose acknowledgement is lost: it is delivered again.
    FulfilUnacked(Order),
    /// Rule 6: the broker forgets its messages.
    PurgeQueue,
    /// Rule 8: ledger::end::cancel, by the buyer, the delayed message or the sweeper.
    Cancel(Order),
    /// Rule 9: sale::release::release_holds, lua/release.lua.
    Release(Order),
    /// Rule 9: ledger::outbox::settle_released.
    SettleRelease,

    // ---- what nobody finished
    /// Rule 12: gate::stock::unconfirmed_since, its first call: the epoch.
    ReconcileSee,
    /// Rule 12: gate::stock::unconfirmed_since: a hold, and the epoch it is under.
    ReconcileList(Order),
    /// Rule 12: sale::reconcile::finish_holds_of, ledger::commit::insert_purchases.
    ReconcileInsert,
    /// Rule 12: sale::reconcile::finish_holds_of, lua/confirm.lua.
    ReconcileConfirm,

    // ---- a refill
    /// Rules 10 and 11: sale::refill::Guard::look, lua/begin_refill.lua with "close". There is no lock: it may be lost.
    Close(usize),
    /// Rule 11: ledger::epochs::raise_epoch.
    Raise(usize),
    /// Rule 11: ledger::epochs::fill_from.
    Snapshot(usize),
    /// Rule 11: lua/begin_refill.lua.
    Begin(usize),
    /// Rule 11: lua/put_tickets.lua.
    Put(usize),
    /// Rule 11: lua/open_sale.lua.
    Open(usize),
    /// Rule 11: ledger::epochs::record_fill.
    Record(usize),
    /// Rule 10: sale::refill::Guard::look finds all whole and the script missing.
    FindWhole(usize),
    /// Rule 10: gate::refill::Fence::load.
    Load(usize),
    /// Rule 10: gate::refill::Fence. The server of this connection is gone.
    Hangup(usize),

    // ---- time
    /// Rule 13: an instance's memory of "sold out" lapses.
    Forget(usize),
    /// Rule 13: `returning_at_ms` has come: it never comes before every memory has lapsed.
    LetReturn,

    // ---- misfortunes
    /// An instance dies, between any two of its steps.
    Die(usize),
    /// The reconciler and the releaser die.
    DieWorkers,
    /// What Redis has in memory reaches the disk. Between two of these, every write may be lost.
    Fsync,
    /// Rule 10: Redis crashes and starts again with what is on disk.
    Crash,
    /// Rule 10: the keys are gone, and the server is not.
    Flush,
}

impl Shop {
    /// Whether the server is what the ledger says (sale::refill::is_whole).
    pub fn is_whole(&self, s: &State) -> bool {
        let now = &s.redis.now;
        s.ledger.run == s.redis.run && now.phase == Phase::Open && now.epoch == s.ledger.epoch
    }

    /// What the system does by itself, sooner or later.
    pub fn own_actions(&self, s: &State, out: &mut Vec<Action>) {
        let now = &s.redis.now;
        for i in 0..INSTANCES {
            match s.tills[i] {
                Till::Idle => {}
                Till::Reserved(..) => out.push(Action::Commit(i)),
                Till::Committed(_) => out.push(Action::Answer(i)),
                Till::Answered(_) => out.push(Action::Confirm(i)),
            }
            if s.memories[i].is_some() {
                out.push(Action::Forget(i));
            }
            self.guard_actions(s, i, out);
        }
        for order in 0..ORDERS {
            if s.late[order] > 0 {
                out.extend([Action::CommitLate(order), Action::DropLate(order)]);
            }
            match s.ledger.purchases[order] {
                Purchase::Pending => out.push(Action::Relay(order)),
                Purchase::Sent if !s.queue[order] && !self.variant.no_resend => out.push(Action::Resend(order)),
                _ => {}
            }
            if s.queue[order] {
                out.push(Action::Fulfil(order));
            }
            if matches!(s.ledger.releases[order], Release::Pending { .. })
                && s.releaser.is_none()
                && now.phase == Phase::Open
            {
                out.push(Action::Release(order));
            }
        }
        if s.releaser.is_some() {
            out.push(Action::SettleRelease);
        }
        match s.reconciler {
            Reconciler::Idle if self.variant.no_reconciler => {}
            Reconciler::Idle if self.variant.reconcile_in_two_reads => {
                if now.phase == Phase::Open && now.unconfirmed.contains(&true) {
                    out.push(Action::ReconcileSee);
                }
            }
            Reconciler::Idle | Reconciler::SawEpoch(_) => {
                let listed = (0..ORDERS).filter(|o| now.phase == Phase::Open && now.unconfirmed[*o]);
                out.extend(listed.map(Action::ReconcileList));
            }
            Reconciler::Listed(..) => out.push(Action::ReconcileInsert),
            Reconciler::Inserted(_) => out.push(Action::ReconcileConfirm),
        }
        if now.promised && s.memories.iter().all(Option::is_none) {
            out.push(Action::LetReturn);
        }
    }

    /// What buyers want, and what goes wrong.
    pub fn outer_actions(&self, s: &State, out: &mut Vec<Action>) {
        let serves = s.redis.loaded && s.redis.now.phase == Phase::Open;
        for i in 0..self.tills {
            for order in (0..ORDERS).filter(|order| self.left.asks[*order] > 0) {
                if s.memories[i].is_some_and(|memory| !self.knows_holder(&memory.holders, order)) {
                    out.push(Action::TellSoldOut(i, order));
                } else if serves && s.tills[i] == Till::Idle && s.left.asks[order] > 0 {
                    out.push(Action::Reserve(i, order));
                }
            }
            if s.left.unknowns > 0 && matches!(s.tills[i], Till::Reserved(..)) {
                out.push(Action::LoseCommit(i));
            }
        }
        for order in 0..ORDERS {
            if s.left.deaths > 0 && s.ledger.purchases[order] == Purchase::Pending && !s.queue[order] {
                out.push(Action::RelayAndDie(order));
            }
            if s.left.unacked > 0 && s.queue[order] {
                out.push(Action::FulfilUnacked(order));
            }
            if s.left.cancels > 0 && s.ledger.orders[order] == Status::PendingPayment {
                out.push(Action::Cancel(order));
            }
        }
        if s.left.purges > 0 && s.queue.contains(&true) {
            out.push(Action::PurgeQueue);
        }
        if s.left.deaths > 0 {
            let busy = |i: &usize| s.tills[*i] != Till::Idle || s.guards[*i] != Guard::Idle || s.memories[*i].is_some();
            out.extend((0..INSTANCES).filter(busy).map(Action::Die));
            if s.reconciler != Reconciler::Idle || s.releaser.is_some() {
                out.push(Action::DieWorkers);
            }
        }
        if s.left.crashes > 0 {
            out.push(Action::Crash);
            if s.left.fsyncs > 0 && s.redis.disk != s.redis.now {
                out.push(Action::Fsync);
            }
        }
        if s.left.flushes > 0 && s.redis.now.phase != Phase::Missing {
            out.push(Action::Flush);
        }
    }

    /// Whether this order's buyer is among the holders that an instance has learnt.
    fn knows_holder(&self, holders: &[bool; ORDERS], order: Order) -> bool {
        (0..ORDERS).any(|other| holders[other] && self.buyer(other) == self.buyer(order))
    }
}
