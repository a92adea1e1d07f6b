//! The Bloom filter of ids that exist (Bloom, "Space/Time Trade-offs in Hash Coding with Allowable Errors", 1970): an id
//! that was never given out is turned away without a question to anybody.

use bloomfilter::Bloom;

use crate::domain::ids::DocId;

/// One id in a thousand that does not exist is let through, to the null entries behind.
const FALSE_POSITIVES: f64 = 0.001;
/// Room to grow until the filter is built anew.
const LEAST_CAPACITY: usize = 10_000;

/// Which ids exist, for all that is known. It forgets nothing: after a removal it is built anew.
#[derive(Clone)]
pub struct IdFilter {
    bloom: Bloom<DocId>,
    items: usize,
    capacity: usize,
}

impl IdFilter {
    pub fn of(ids: &[DocId]) -> Result<Self, &'static str> {
        let capacity = LEAST_CAPACITY.max(ids.len() * 2);
        let mut filter = Self { bloom: Bloom::new_for_fp_rate(capacity, FALSE_POSITIVES)?, items: 0, capacity };
        ids.iter().for_each(|id| filter.insert(*id));
        Ok(filter)
    }

    pub fn insert(&mut self, id: DocId) {
        if !self.bloom.check_and_set(&id) {
            self.items += 1;
        }
    }

    pub fn may_contain(&self, id: DocId) -> bool {
        self.bloom.check(&id)
    }

    /// Fuller than it was made for: more and more would be let through.
    pub fn is_full(&self) -> bool {
        self.items >= self.capacity
    }

    /// The filter's size in memory.
    pub fn bits(&self) -> u64 {
        self.bloom.len()
    }

    pub fn items(&self) -> usize {
        self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exists_is_let_through_and_nearly_nothing_else() {
        let ids: Vec<DocId> = (1..=5_000).map(DocId::Sale).collect();
        let filter = IdFilter::of(&ids).unwrap();
        assert!(ids.iter().all(|id| filter.may_contain(*id)));
        let strays = (10_000..110_000).filter(|n| filter.may_contain(DocId::Sale(*n))).count();
        assert!(strays < 500, "{strays} of 100000");
        let products = (1..=5_000).filter(|n| filter.may_contain(DocId::Product(*n))).count();
        assert!(products < 50, "a sale's number is no product's: {products}");
    }
}
