//! The steps of a purchase (rules 1 to 5 and 13): a call to Redis, the commit of the winners, and their answers.

use super::orders::Orders;
use super::redis::Admission;
use super::state::{PurchaseStep, SoldOutCache, State};
use super::variants::{Variant, World};

/// The next step of a call after its commit.
fn after_commit(durable: Orders) -> PurchaseStep {
    if durable.is_empty() { PurchaseStep::Idle } else { PurchaseStep::Committed(durable) }
}

/// Several winners of a call become one group. A single winner, and each repeated request, becomes a group of one.
fn groups_of(won: Orders, repeated: Orders) -> impl Iterator<Item = Orders> {
    let (group, alone) = if won.len() < 2 { (None, won.union(repeated)) } else { (Some(won), repeated) };
    group.into_iter().chain(alone.iter().map(Orders::one))
}

impl World {
    /// A call of reserve.lua. Each buyer sees the changes of the earlier ones.
    pub(crate) fn reserve(&self, s: &mut State, i: usize, asked: Orders) {
        let master = s.master_of(i);
        s.redis[master].begin_script(self);
        let now = &mut s.redis[master].now;
        let (mut won, mut repeated) = (Orders::default(), Orders::default());
        let mut last = None;
        for order in asked.iter() {
            s.budget.requests[order] -= 1;
            let admission = now.reserve(self, order);
            let stands = s.ledger.has_record(order);
            match admission {
                Admission::Reserved => {
                    s.violations.sold_twice |= s.ledger.has_ended(order);
                    won = won.with(order);
                    s.accepted[order] |= self.is(Variant::AnswerBeforeCommit);
                    if self.is(Variant::ConfirmBeforeCommit) {
                        now.confirm(order);
                    }
                }
                Admission::Repeat { confirmed: false } if self.is(Variant::RepeatTrustsTheGroup) => {
                    s.accepted[order] = true;
                }
                Admission::Repeat { confirmed: false } => repeated = repeated.with(order),
                // The ledger has the status. If it had no record, the answer would be 503.
                Admission::Repeat { confirmed: true } => s.accepted[order] |= stands,
                Admission::SoldOutCache | Admission::TooFew => s.violations.sold_out_to_holder |= stands,
                Admission::RepeatEnded | Admission::AtLimit | Admission::Lapsed => {}
            }
            last = Some(admission);
        }
        let stock_was_0 = now.stock == 0;
        let may_remember = last.is_some_and(|admission| now.may_remember(self, admission));
        s.sold_out_caches[i] = may_remember.then_some(SoldOutCache { holders: now.holders, stock_was_0 });
        if !won.union(repeated).is_empty() {
            s.requests[i] = PurchaseStep::Reserved { won, repeated, epoch: now.epoch };
        }
    }

    pub(crate) fn go_on(&self, s: &mut State, i: usize) {
        let master = s.master_of(i);
        s.requests[i] = match s.requests[i] {
            PurchaseStep::Idle => PurchaseStep::Idle,
            // postgres::orders::commit, postgres::orders::insert: the records are inserted, or refused because of the epoch.
            PurchaseStep::Reserved { won, repeated, epoch } => {
                let durable = groups_of(won, repeated).map(|group| s.ledger.insert(self, group, epoch));
                after_commit(durable.fold(Orders::default(), Orders::union))
            }
            // The next of these rows is inserted, or refused because of the epoch.
            PurchaseStep::OneByOne { left, done, epoch } => {
                let Some(order) = left.iter().next() else { return };
                let durable = s.ledger.insert_one(order, epoch);
                if durable && self.is(Variant::ConfirmAfterPart) {
                    left.union(done).iter().for_each(|order| s.redis[master].now.confirm(order));
                }
                let (left, done) = (left.without(order), if durable { done.with(order) } else { done });
                if left.is_empty() { after_commit(done) } else { PurchaseStep::OneByOne { left, done, epoch } }
            }
            // buying::sale::purchase
            PurchaseStep::Committed(orders) => {
                orders.iter().for_each(|order| s.accepted[order] = true);
                PurchaseStep::Accepted(orders)
            }
            // buying::sale::confirmer, lua/confirm.lua
            PurchaseStep::Accepted(orders) => {
                orders.iter().for_each(|order| s.redis[master].now.confirm(order));
                PurchaseStep::Idle
            }
        };
    }

    pub(crate) fn lose_commit(&self, s: &mut State, i: usize) {
        let PurchaseStep::Reserved { won, repeated, epoch } = s.requests[i] else { return };
        s.budget.lost_commits -= 1;
        s.late_inserts.extend(groups_of(won, repeated).map(|group| (group, epoch)));
        s.requests[i] = PurchaseStep::Idle;
        if self.is(Variant::BlindRevert) {
            let master = s.master_of(i);
            won.union(repeated).iter().for_each(|order| s.redis[master].now.revert(self, order));
        }
    }

    pub(crate) fn begin_one_by_one(&self, s: &mut State, i: usize) {
        let PurchaseStep::Reserved { won, repeated, epoch } = s.requests[i] else { return };
        s.budget.refused_groups -= 1;
        s.requests[i] = PurchaseStep::OneByOne { left: won.union(repeated), done: Orders::default(), epoch };
    }
}
