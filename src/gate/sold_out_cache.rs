//! Remembers that a sale is sold out (protocol, rule 13), for a moment only and never for the holder of a ticket, and who may
//! hold one.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use super::reserve_reply::{Memory, ReserveReply};
use crate::domain::ids::{Epoch, SaleId, UserId};

/// What one worker thread remembers of each sale.
#[derive(Default)]
pub(super) struct SoldOutCache {
    sales: HashMap<SaleId, Remembered>,
    hasher: RandomState,
}

struct Remembered {
    epoch: Epoch,
    holders_known: usize,
    /// Hashes of buyers: a false match only costs a call to Redis.
    holders: HashSet<u64>,
    /// When all holders were known last.
    complete_at: Option<Instant>,
    /// Until when the sale counts as sold out.
    until: Option<Instant>,
}

/// How long a complete knowledge of the holders counts. A sale that is being sold is asked for far more often, except in an
/// overload, where a call to Redis itself may take a part of a second; and that is when strangers must be known.
const COMPLETE_FOR: Duration = Duration::from_secs(1);

impl SoldOutCache {
    /// The most sales that are remembered; when there are more, the cache is cleared.
    const SALES_MAX: usize = 1024;
    /// The most holders that are known of all sales but the one with most: about 19 MB. When there are more, only that one is kept.
    const HOLDERS_MAX: usize = 1_000_000;

    /// Whether this buyer can be refused as sold out without a call to Redis.
    pub fn is_sold_out_for(&self, sale: SaleId, user: &UserId) -> bool {
        self.sales.get(&sale).is_some_and(|r| {
            r.until.is_some_and(|until| Instant::now() < until)
                && !r.holders.contains(&self.hasher.hash_one(user.as_str()))
        })
    }

    /// Whether this user is known not to hold a ticket.
    pub fn is_stranger(&self, sale: SaleId, user: &str) -> bool {
        self.sales.get(&sale).is_some_and(|r| {
            r.complete_at.is_some_and(|at| at.elapsed() < COMPLETE_FOR)
                && !r.holders.contains(&self.hasher.hash_one(user))
        })
    }

    /// The epoch and the number of holders that are known of a sale.
    pub fn known(&self, sale: SaleId) -> (Epoch, usize) {
        self.sales.get(&sale).map_or((Epoch(0), 0), |r| (r.epoch, r.holders_known))
    }

    /// Records a reply to a request that was sent at `asked_at`, and named what was `known` then. The server keeps returned
    /// units back for `sold_out` from the time of its reply, which is later.
    pub fn record(
        &mut self,
        sale: SaleId,
        known: (Epoch, usize),
        reply: &mut ReserveReply,
        asked_at: Instant,
        sold_out: Duration,
    ) {
        if reply.memory == Memory::SomeHolders && reply.new_holders.is_empty() {
            if let Some(known) = self.sales.get_mut(&sale) {
                known.until = None;
            }
            return;
        }
        if self.sales.len() >= Self::SALES_MAX && !self.sales.contains_key(&sale) {
            self.sales.clear();
        }
        let entry = self.sales.entry(sale).or_insert_with(|| Remembered {
            epoch: reply.epoch,
            holders_known: 0,
            holders: HashSet::new(),
            complete_at: None,
            until: None,
        });
        if entry.epoch != reply.epoch {
            (entry.epoch, entry.holders_known, entry.complete_at) = (reply.epoch, 0, None);
            entry.holders.clear();
        }
        // The cache was cleared since the request was sent: the reply lacks the holders that were known then.
        let reply_begins_at = if known.0 == reply.epoch { known.1 } else { 0 };
        if entry.holders_known != reply_begins_at {
            entry.until = None;
            return;
        }
        let has_learnt = !reply.new_holders.is_empty();
        entry.holders.extend(reply.new_holders.drain(..).map(|user| self.hasher.hash_one(user.as_str())));
        entry.holders_known = reply.holders_known;
        if reply.memory >= Memory::AllHolders {
            entry.complete_at = Some(asked_at);
        }
        entry.until = (reply.memory == Memory::SoldOut).then(|| asked_at + sold_out);
        if has_learnt {
            let holders: usize = self.sales.values().map(|of| of.holders.len()).sum();
            let largest = self.sales.iter().map(|(sale, of)| (of.holders.len(), *sale)).max();
            if let Some((_, largest)) = largest.filter(|(most, _)| holders - most > Self::HOLDERS_MAX) {
                self.sales.retain(|sale, _| *sale == largest);
            }
        }
    }
}
