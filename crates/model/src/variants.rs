//! The modelled sale, its bounds, and the deliberately broken variants of the protocol.

use super::orders::ORDERS;
use super::state::Budget;

/// The model: a sale, its bounds, and a variant of the protocol.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub total: u8,
    pub per_user: u8,
    /// A buyer with this many lapsed holds gets no other.
    pub lapses_max: usize,
    /// The buyer and the units of each order.
    pub orders: [(u8, u8); ORDERS],
    pub budget: Budget,
    /// How many buyers a call of reserve.lua serves. Winners of one call are a group.
    pub batch_max: usize,
    /// How many instances sell, and how many refill.
    pub selling: usize,
    pub refilling: usize,
    /// No refill raises the epoch above this.
    pub max_epoch: u8,
    /// Whether instances cache "sold out" at all.
    pub caches_sold_out: bool,
    pub broken: Option<Variant>,
    /// Properties that this configuration must show an example of.
    pub shows: &'static [&'static str],
}

/// Each variant breaks one rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Rule 3: the 202 is sent before the row is committed.
    AnswerBeforeCommit,
    /// Rule 3: a repeated request is answered without a group of one, because the larger group is being committed.
    RepeatTrustsTheGroup,
    /// Rule 3: a group is inserted whatever the sale's epoch.
    GroupWithoutEpoch,
    /// Rule 4: an insert of unknown outcome releases the hold.
    BlindRevert,
    /// Rule 5: a hold is removed from the unconfirmed list before its record is committed.
    ConfirmBeforeCommit,
    /// Rule 5: after a group was refused, all its orders are confirmed when the first of them has a row.
    ConfirmAfterPart,
    /// Rule 6: a row that was sent is never sent again.
    NoResend,
    /// Rule 7: a group of one makes an order that its larger group has already made.
    SecondRecordMakesAgain,
    /// Rule 7: such a group of one stays unsettled.
    SecondRecordLeftOpen,
    /// Rule 7: a group is settled as a whole although a group of one has already made one of its orders; it takes its units again.
    GroupCountsTheMade,
    /// Rule 7: a group that cannot be settled as a whole is tried again, and never split.
    GroupNeverSplit,
    /// Rule 7: such a group is settled without the order that failed.
    SettlePart,
    /// Rule 7: the split ends the group's message, and leaves the group open.
    SplitWithoutClosing,
    /// Rule 7: a group is closed in one transaction, and its orders get their rows in another.
    SplitInTwoTransactions,
    /// Rule 7: the split does not check whether the group was settled meanwhile.
    SplitUnclaimed,
    /// Rule 9: the ticket of an ended order is deleted.
    ReleaseWithoutTombstone,
    /// Rule 9: a release row is done under whatever epoch Redis answered.
    ReleaseDoneUnderAnyEpoch,
    /// Rule 10: a server sells whatever its replication id.
    IdUnchecked,
    /// Rule 10: a server with a new replication id and no second one sells, whatever memory it has read since the sale was opened.
    MemoryUnchecked,
    /// Rule 11: a refill opens the sale on a server that has lost the refill's data.
    OpensWhatWasLost,
    /// Rule 11: the refill does not raise the epoch.
    RefillWithoutEpoch,
    /// Rule 11: the refill reads only groups of one.
    RefillForgetsGroups,
    /// Rule 11: the refill counts an order once for each of its records.
    RefillCountsTwice,
    /// Rule 11: the refill counts records whose order is already made.
    RefillCountsTheMade,
    /// Rule 11: the refill writes a live ticket for each record, even if the order has ended.
    RefillRevivesTheEnded,
    /// Rule 12: holds of a dead instance stay unfinished.
    NoReconciler,
    /// Rule 12: the reconciler reads the epoch in one call and the holds in another.
    ReconcileInTwoReads,
    /// Rule 13: an instance caches "sold out" although units were left, but fewer than the buyer asked for.
    SoldOutForTooMany,
    /// Rule 13: returned units are for sale at once.
    ReturnAtOnce,
    /// Rule 13: a refill opens the sale while an instance may still have the old epoch's "sold out" cached.
    OpenBeforeMemoriesLapse,
}

impl World {
    /// Two units and three buyers; the third asks for both. There are no faults.
    pub(crate) const NO_FAULTS: Self = Self {
        total: 2,
        per_user: 2,
        lapses_max: usize::MAX,
        orders: [(0, 1), (1, 1), (2, 2)],
        budget: Budget {
            requests: [1, 1, 1],
            crashes: 0,
            fsyncs: 0,
            flushes: 0,
            takeovers: 0,
            new_ids: 0,
            splits: 0,
            deaths: 0,
            lost_commits: 0,
            refused_groups: 0,
            poisons: 0,
            lost_acks: 0,
            purges: 0,
            cancels: 0,
        },
        batch_max: 1,
        selling: 2,
        refilling: 1,
        max_epoch: 2,
        caches_sold_out: false,
        broken: None,
        shows: &[],
    };

    /// This sale under a broken variant of the protocol.
    pub(crate) fn with(self, variant: Variant) -> Self {
        Self { broken: Some(variant), shows: &[], ..self }
    }

    pub(crate) fn is(&self, variant: Variant) -> bool {
        self.broken == Some(variant)
    }

    pub(crate) fn units(&self, order: usize) -> u8 {
        self.orders[order].1
    }

    pub(crate) fn buyer(&self, order: usize) -> u8 {
        self.orders[order].0
    }

    /// The same, where it numbers the buyers' counters.
    pub(crate) fn buyer_number(&self, order: usize) -> usize {
        usize::from(self.buyer(order))
    }

    /// The units of all orders that satisfy `which`.
    pub(crate) fn units_of(&self, which: impl Fn(usize) -> bool) -> u8 {
        (0..ORDERS).filter(|order| which(*order)).map(|order| self.units(order)).sum()
    }
}
