//! Remembers for a moment that a sale is sold out (protocol, rule 13), but never for ticket holders. So it knows the holders, too.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use super::reply::{Memory, ReserveReply};
use seckill_domain::ids::{Epoch, SaleId, Shard, UserId};

/// The sale, and the home shard of the buyers: each shard has its own holders.
type Line = (SaleId, Shard);

#[derive(Default)]
pub(super) struct SoldOutCache {
    sales: HashMap<Line, SoldOutEntry>,
    hasher: RandomState,
}

struct SoldOutEntry {
    epoch: Epoch,
    holders_known: usize,
    /// Hashes of buyers: a collision costs a call to Redis.
    holders: HashSet<u64>,
    /// When all holders were known last.
    complete_at: Option<Instant>,
    /// The end of "sold out".
    until: Option<Instant>,
}

/// How long a complete list of holders counts. Strangers must be known in an overload, when a call to Redis may take a part of a second.
const COMPLETE_FOR: Duration = Duration::from_secs(1);

impl SoldOutCache {
    /// With more lines, the cache is cleared.
    const LINES_MAX: usize = 16_384;
    /// The most holders of all sales except the largest, about 19 MB. With more, only the largest sale is kept.
    const HOLDERS_MAX: usize = 1_000_000;

    pub(crate) fn is_sold_out_for(&self, sale: Line, user: &UserId) -> bool {
        self.sales.get(&sale).is_some_and(|r| {
            r.until.is_some_and(|until| Instant::now() < until)
                && !r.holders.contains(&self.hasher.hash_one(user.as_str()))
        })
    }

    pub(crate) fn is_stranger(&self, sale: Line, user: &str) -> bool {
        self.sales.get(&sale).is_some_and(|r| {
            r.complete_at.is_some_and(|at| at.elapsed() < COMPLETE_FOR)
                && !r.holders.contains(&self.hasher.hash_one(user))
        })
    }

    pub(crate) fn known(&self, sale: Line) -> (Epoch, usize) {
        self.sales.get(&sale).map_or((Epoch(0), 0), |r| (r.epoch, r.holders_known))
    }

    /// Records a reply to a call that was sent at `asked_at` with the holders `known` then. Until `sold_out_until` all shards keep back
    /// returned units (`None`: not known).
    pub(crate) fn record(
        &mut self,
        sale: Line,
        known: (Epoch, usize),
        reply: &mut ReserveReply,
        asked_at: Instant,
        sold_out_until: Option<Instant>,
    ) {
        if reply.memory == Memory::SomeHolders && reply.new_holders.is_empty() {
            if let Some(known) = self.sales.get_mut(&sale) {
                known.until = None;
            }
            return;
        }
        if self.sales.len() >= Self::LINES_MAX && !self.sales.contains_key(&sale) {
            self.sales.clear();
        }
        let entry = self.sales.entry(sale).or_insert_with(|| SoldOutEntry {
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
        let reply_begins_at = if known.0 == reply.epoch { known.1 } else { 0 };
        // The cache was cleared since the call was sent: the reply lacks the holders that were known then.
        if entry.holders_known < reply_begins_at {
            entry.until = None;
            return;
        }
        // A call made at the same time has returned earlier, with the same holders and more.
        let heard = entry.holders_known - reply_begins_at;
        if heard > reply.new_holders.len() {
            return;
        }
        let has_learnt = heard < reply.new_holders.len();
        entry.holders.extend(reply.new_holders.drain(..).skip(heard).map(|user| self.hasher.hash_one(user.as_str())));
        entry.holders_known = reply.holders_known;
        if reply.memory >= Memory::AllHolders {
            entry.complete_at = entry.complete_at.max(Some(asked_at));
        }
        entry.until = (reply.memory == Memory::SoldOut).then_some(sold_out_until).flatten();
        if has_learnt {
            let holders: usize = self.sales.values().map(|of| of.holders.len()).sum();
            if holders > Self::HOLDERS_MAX {
                self.keep_largest(holders);
            }
        }
    }

    /// Keeps only the sale with most holders, if the others have too many.
    fn keep_largest(&mut self, holders: usize) {
        let mut by_sale: HashMap<SaleId, usize> = HashMap::new();
        for ((sale, _), of) in &self.sales {
            *by_sale.entry(*sale).or_default() += of.holders.len();
        }
        let largest = by_sale.into_iter().max_by_key(|(_, holders)| *holders);
        if let Some((largest, _)) = largest.filter(|(_, most)| holders - most > Self::HOLDERS_MAX) {
            self.sales.retain(|(sale, _), _| *sale == largest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALE: Line = (SaleId::from_db(7), Shard::FIRST);
    const EPOCH: Epoch = Epoch(3);

    /// Records a reply to a caller that knew the first `known` of `length` holders. They are users "0", "1", and so on.
    fn record(cache: &mut SoldOutCache, known: usize, length: usize, memory: Memory) {
        let new_holders = (known..length).map(|user| user.to_string()).collect();
        let (admissions, loans) = (Vec::new(), Vec::new());
        let mut reply = ReserveReply { epoch: EPOCH, memory, holders_known: length, new_holders, admissions, loans };
        let now = Instant::now();
        cache.record(SALE, (EPOCH, known), &mut reply, now, Some(now + Duration::from_secs(60)));
    }

    fn is_sold_out(cache: &SoldOutCache) -> bool {
        cache.is_sold_out_for(SALE, &UserId::parse("stranger").unwrap())
    }

    #[test]
    fn of_calls_made_at_the_same_time_each_adds_what_the_others_did_not_tell() {
        let mut cache = SoldOutCache::default();
        record(&mut cache, 0, 3, Memory::AllHolders);
        record(&mut cache, 3, 5, Memory::AllHolders);
        record(&mut cache, 3, 8, Memory::SoldOut);
        assert_eq!(cache.known(SALE), (EPOCH, 8));
        assert!(is_sold_out(&cache));
        assert!((0..8).all(|user| !cache.is_stranger(SALE, &user.to_string())) && cache.is_stranger(SALE, "8"));
        // It was made before the last one, and read after it.
        record(&mut cache, 3, 4, Memory::AllHolders);
        assert_eq!(cache.known(SALE), (EPOCH, 8));
        assert!(is_sold_out(&cache));
    }

    #[test]
    fn a_reply_that_lacks_holders_is_no_memory() {
        let mut cache = SoldOutCache::default();
        record(&mut cache, 0, 3, Memory::SoldOut);
        record(&mut cache, 5, 6, Memory::SoldOut);
        assert_eq!(cache.known(SALE), (EPOCH, 3));
        assert!(!is_sold_out(&cache));
    }
}
