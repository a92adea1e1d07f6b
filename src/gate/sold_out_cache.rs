//! "Sold out", remembered (protocol, rule 13): for a moment only, and never told to a ticket's holder.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use super::reserve_reply::ReserveReply;
use crate::domain::ids::{Epoch, SaleId, UserId};

/// What one worker thread remembers of each sale.
#[derive(Default)]
pub struct SoldOutCache {
    sales: HashMap<SaleId, Remembered>,
    hasher: RandomState,
}

/// Holders are kept as hashes: a false match only costs a question to Redis.
struct Remembered {
    epoch: Epoch,
    holders_known: usize,
    holders: HashSet<u64>,
    until: Option<Instant>,
}

impl SoldOutCache {
    /// Sales that are remembered at once; beyond, the memory starts afresh.
    const SALES_MAX: usize = 1024;

    /// Whether this buyer can be told "sold out" without asking anybody.
    pub fn covers(&self, sale: SaleId, user: &UserId) -> bool {
        self.sales.get(&sale).is_some_and(|r| {
            r.until.is_some_and(|until| Instant::now() < until)
                && !r.holders.contains(&self.hasher.hash_one(user.as_str()))
        })
    }

    /// Up to which epoch and how many holders this sale is known.
    pub fn known(&self, sale: SaleId) -> (Epoch, usize) {
        self.sales.get(&sale).map_or((Epoch(0), 0), |r| (r.epoch, r.holders_known))
    }

    /// Takes in what an answer says. `asked_at` is from before the question: the server promises to keep returned
    /// units back for `sold_out` from when it answered, which is later.
    pub fn learn(&mut self, sale: SaleId, answers: &mut ReserveReply, asked_at: Instant, sold_out: Duration) {
        if !answers.may_remember && answers.new_holders.is_empty() {
            if let Some(known) = self.sales.get_mut(&sale) {
                known.until = None;
            }
            return;
        }
        if self.sales.len() >= Self::SALES_MAX && !self.sales.contains_key(&sale) {
            self.sales.clear();
        }
        let entry = self.sales.entry(sale).or_insert_with(|| Remembered {
            epoch: answers.epoch,
            holders_known: 0,
            holders: HashSet::new(),
            until: None,
        });
        if entry.epoch != answers.epoch {
            (entry.epoch, entry.holders_known) = (answers.epoch, 0);
            entry.holders.clear();
        }
        entry.holders.extend(answers.new_holders.drain(..).map(|user| self.hasher.hash_one(user.as_str())));
        entry.holders_known = answers.holders_known;
        entry.until = answers.may_remember.then(|| asked_at + sold_out);
    }
}
