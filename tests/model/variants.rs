//! The sale that is modelled, what may happen to it, and the ways in which the protocol can be broken on purpose.

use super::state::{Left, ORDERS};

/// The model: a sale, its bounds, and a variant of the protocol.
#[derive(Clone, Debug)]
pub struct Shop {
    pub total: u8,
    pub per_user: u8,
    /// Buyer and units of each order.
    pub orders: [(u8, u8); ORDERS],
    pub left: Left,
    /// Tills that sell, and guards that refill.
    pub tills: usize,
    pub guards: usize,
    /// Refills go no further than this epoch.
    pub last_epoch: u8,
    /// Whether "sold out" is remembered at all.
    pub remembers: bool,
    pub variant: Variant,
    /// `sometimes` properties that this configuration must show.
    pub shows: &'static [&'static str],
}

/// Each is the protocol with one rule broken.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Rule 3: the 202 leaves before the row is committed.
    pub answer_before_commit: bool,
    /// Rule 4: an insert whose outcome is unknown gives the hold back.
    pub blind_revert: bool,
    /// Rule 6: what was sent is not sent again.
    pub no_resend: bool,
    /// Rule 9: an ended order's ticket is deleted.
    pub release_without_tombstone: bool,
    /// Rule 9: a release is done whatever epoch Redis answered under.
    pub release_done_under_any_epoch: bool,
    /// Rule 10: whoever finds the script missing loads it.
    pub load_on_demand: bool,
    /// Rule 10: a replica that is promoted may have served before: its script cache is full and its run_id known.
    pub promoted_with_cache: bool,
    /// Rule 11: the refill leaves the epoch as it is.
    pub refill_without_epoch: bool,
    /// Rule 12: nobody finishes what a dead instance has left.
    pub no_reconciler: bool,
    /// Rule 12: the reconciler reads the epoch in one call and the holds in another.
    pub reconcile_in_two_reads: bool,
    /// Rule 13: remembered although units were left, fewer than the buyer wanted.
    pub sold_out_for_too_many: bool,
    /// Rule 13: returned units are for sale at once.
    pub return_at_once: bool,
    /// Rule 13: a refill opens the sale while an instance may still remember the old epoch's "sold out".
    pub open_before_memories_lapse: bool,
}

impl Variant {
    /// The protocol as it is.
    pub const NONE: Self = Self {
        answer_before_commit: false,
        blind_revert: false,
        no_resend: false,
        release_without_tombstone: false,
        release_done_under_any_epoch: false,
        load_on_demand: false,
        promoted_with_cache: false,
        refill_without_epoch: false,
        no_reconciler: false,
        reconcile_in_two_reads: false,
        sold_out_for_too_many: false,
        return_at_once: false,
        open_before_memories_lapse: false,
    };
}

impl Shop {
    /// Two units and three buyers, the third of whom wants both; nothing happens to them.
    pub const CALM: Self = Self {
        total: 2,
        per_user: 2,
        orders: [(0, 1), (1, 1), (2, 2)],
        left: Left {
            asks: [1, 1, 1],
            crashes: 0,
            fsyncs: 0,
            flushes: 0,
            deaths: 0,
            unknowns: 0,
            unacked: 0,
            purges: 0,
            cancels: 0,
        },
        tills: 2,
        guards: 1,
        last_epoch: 2,
        remembers: false,
        variant: Variant::NONE,
        shows: &[],
    };

    pub fn units(&self, order: usize) -> u8 {
        self.orders[order].1
    }

    pub fn buyer(&self, order: usize) -> u8 {
        self.orders[order].0
    }

    /// The sum of the units of those orders that satisfy `which`.
    pub fn units_of(&self, which: impl Fn(usize) -> bool) -> u8 {
        (0..ORDERS).filter(|order| which(*order)).map(|order| self.units(order)).sum()
    }
}
