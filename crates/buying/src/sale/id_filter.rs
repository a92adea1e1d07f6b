//! A Bloom filter of the existing ids (Bloom, "Space/Time Trade-offs in Hash Coding with Allowable Errors", 1970). Unknown ids are refused
//! without a call to Redis or PostgreSQL.

use bloomfilter::Bloom;

use seckill_domain::ids::DocId;

/// One unknown id in a thousand passes the filter. Then a cached absence gives the answer.
const FALSE_POSITIVES: f64 = 0.001;
/// A new filter has room to grow.
const LEAST_CAPACITY: usize = 10_000;

/// The filter cannot remove an id: a removal needs a new filter.
#[derive(Clone)]
pub(crate) struct IdFilter {
    bloom: Bloom<DocId>,
    items: usize,
    capacity: usize,
}

impl IdFilter {
    /// # Errors
    /// There are too many ids.
    pub(crate) fn of(ids: &[DocId]) -> Result<Self, &'static str> {
        let capacity = LEAST_CAPACITY.max(ids.len() * 2);
        let mut filter = Self { bloom: Bloom::new_for_fp_rate(capacity, FALSE_POSITIVES)?, items: 0, capacity };
        ids.iter().for_each(|id| filter.insert(*id));
        Ok(filter)
    }

    pub(crate) fn insert(&mut self, id: DocId) {
        if !self.bloom.check_and_set(&id) {
            self.items += 1;
        }
    }

    pub(crate) fn may_contain(&self, id: DocId) -> bool {
        self.bloom.check(&id)
    }

    /// Whether the filter has more ids than its error rate allows.
    pub(crate) fn is_full(&self) -> bool {
        self.items >= self.capacity
    }

    pub(crate) fn bits(&self) -> u64 {
        self.bloom.len()
    }

    pub(crate) fn items(&self) -> usize {
        self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_ids_pass_and_nearly_all_unknown_ids_do_not() {
        let ids: Vec<DocId> = (1..=5_000).map(DocId::Sale).collect();
        let filter = IdFilter::of(&ids).unwrap();
        assert!(ids.iter().all(|id| filter.may_contain(*id)));
        let strays = (10_000..110_000).filter(|n| filter.may_contain(DocId::Sale(*n))).count();
        assert!(strays < 500, "{strays} of 100000");
        let products = (1..=5_000).filter(|n| filter.may_contain(DocId::Product(*n))).count();
        assert!(products < 50, "a sale's number is no product's: {products}");
    }
}
