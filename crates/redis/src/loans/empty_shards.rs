//! The shards that one worker thread knows to be empty for some time (protocol, rule 15).

use std::collections::HashMap;
use std::time::Instant;

use seckill_domain::ids::{Epoch, SaleId, Shard};
use seckill_domain::shards::SaleShards;

#[derive(Default)]
pub(crate) struct EmptyShards {
    sales: HashMap<SaleId, Known>,
}

/// The knowledge of a sale ends with its epoch.
struct Known {
    epoch: Epoch,
    /// The time before which each shard puts no unit on sale.
    until: Vec<Option<Instant>>,
}

/// All shards but one are empty until this moment, at this epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OthersEmpty {
    pub(crate) epoch: Epoch,
    pub(crate) until: Instant,
}

impl OthersEmpty {
    /// Whether the sale is sold out when the remaining shard has no unit `now`, under `epoch`.
    pub(crate) fn covers(self, epoch: Epoch, now: Instant) -> bool {
        self.epoch == epoch && now < self.until
    }
}

impl EmptyShards {
    /// With more sales, all are forgotten.
    const SALES_MAX: usize = 1024;

    /// Records a shard's answer under this epoch: it puts no unit on sale before `until` (`None`: not known).
    pub(crate) fn record(&mut self, of: SaleShards, shard: Shard, epoch: Epoch, until: Option<Instant>) {
        if self.sales.len() >= Self::SALES_MAX && !self.sales.contains_key(&of.sale) {
            self.sales.clear();
        }
        let shards = usize::from(of.count.get());
        let known = self.sales.entry(of.sale).or_insert_with(|| Known { epoch, until: vec![None; shards] });
        if epoch > known.epoch {
            *known = Known { epoch, until: vec![None; shards] };
        }
        if epoch == known.epoch
            && let Some(place) = known.until.get_mut(usize::from(shard.0.unsigned_abs()))
        {
            // Answers may overtake each other, and each holds for its own time.
            *place = (*place).max(until);
        }
    }

    pub(crate) fn is_empty(&self, of: SaleShards, shard: Shard, now: Instant) -> bool {
        self.until(of, shard).is_some_and(|until| now < until)
    }

    pub(crate) fn epoch(&self, of: SaleShards) -> Option<Epoch> {
        self.sales.get(&of.sale).map(|known| known.epoch)
    }

    /// `None` unless all shards except `home` are known to be empty.
    pub(crate) fn others(&self, of: SaleShards, home: Shard, now: Instant) -> Option<OthersEmpty> {
        let epoch = self.sales.get(&of.sale)?.epoch;
        let mut until = None;
        for shard in of.count.all().filter(|shard| *shard != home) {
            let of_shard = self.until(of, shard).filter(|until| now < *until)?;
            until = Some(until.map_or(of_shard, |least: Instant| least.min(of_shard)));
        }
        Some(OthersEmpty { epoch, until: until? })
    }

    fn until(&self, of: SaleShards, shard: Shard) -> Option<Instant> {
        *self.sales.get(&of.sale)?.until.get(usize::from(shard.0.unsigned_abs()))?
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use seckill_domain::shards::ShardCount;

    const HOME: Shard = Shard::FIRST;

    #[test]
    fn the_others_are_empty_only_together_and_until_the_first_of_them_may_sell() {
        let of = SaleShards { sale: SaleId::from_db(1), count: ShardCount::parse(3).unwrap(), asks_pass: false };
        let (now, mut known) = (Instant::now(), EmptyShards::default());
        let at = |ms| now + Duration::from_millis(ms);
        assert_eq!(known.others(of, HOME, now), None);
        known.record(of, Shard(1), Epoch(1), Some(at(500)));
        assert_eq!(known.others(of, HOME, now), None, "nothing is known of the third");
        known.record(of, Shard(2), Epoch(1), Some(at(300)));
        let others = known.others(of, HOME, now).unwrap();
        assert_eq!(others, OthersEmpty { epoch: Epoch(1), until: at(300) });
        assert!(others.covers(Epoch(1), at(299)) && !others.covers(Epoch(1), at(300)) && !others.covers(Epoch(2), now));
        assert_eq!(known.others(of, HOME, at(300)), None);
        known.record(of, Shard(2), Epoch(1), None);
        assert!(known.is_empty(of, Shard(2), at(299)), "a promise is not taken back");
        known.record(of, Shard(2), Epoch(2), None);
        assert!(!known.is_empty(of, Shard(1), now), "what was known ends with its epoch");
        known.record(of, Shard(1), Epoch(1), Some(at(500)));
        assert!(!known.is_empty(of, Shard(1), now), "an answer of an older epoch says nothing");
    }
}
