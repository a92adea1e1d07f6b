//! What every serving instance knows of all sales: their terms, in memory, at most a notice behind.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwap;
use uuid::Uuid;

use super::clock::Clock;
use super::{SaleError, Step};
use crate::domain::ids::SaleId;
use crate::domain::sale::Sale;
use crate::ledger::{Ledger, LedgerError};

/// All sales, and this instance's name on the list of those that know them.
pub struct Catalog {
    ledger: Ledger,
    instance: Uuid,
    sales: ArcSwap<HashMap<SaleId, Arc<Sale>>>,
    version: AtomicI64,
    pub clock: Clock,
}

impl Catalog {
    /// Loads everything there is.
    pub async fn load(ledger: &Ledger) -> Result<Self, SaleError> {
        let catalog = Self {
            ledger: ledger.clone(),
            instance: Uuid::new_v4(),
            sales: ArcSwap::default(),
            version: AtomicI64::new(0),
            clock: Clock::set_to(ledger.now_ms().await?),
        };
        while catalog.keep_up().await? == Step::More {}
        Ok(catalog)
    }

    pub fn get(&self, sale: SaleId) -> Option<Arc<Sale>> {
        self.sales.load().get(&sale).cloned()
    }

    /// The newest sales first.
    pub fn newest(&self, limit: usize) -> Vec<Arc<Sale>> {
        let mut sales: Vec<_> = self.sales.load().values().cloned().collect();
        sales.sort_unstable_by_key(|sale| std::cmp::Reverse(sale.id));
        sales.truncate(limit);
        sales
    }

    /// Loads what has changed, says so to those who wait for it, and hears PostgreSQL's time.
    pub async fn keep_up(&self) -> Result<Step, LedgerError> {
        self.ledger.in_time(self.catch_up()).await
    }

    async fn catch_up(&self) -> Result<Step, LedgerError> {
        let (changed, version) = self.ledger.sales_since(self.version.load(Ordering::Relaxed)).await?;
        if !changed.is_empty() {
            let mut sales = HashMap::clone(&self.sales.load());
            sales.extend(changed.into_iter().map(|sale| (sale.id, Arc::new(sale))));
            self.sales.store(Arc::new(sales));
        }
        self.version.store(version, Ordering::Relaxed);
        let (now_ms, newest) = self.ledger.beat(self.instance, version).await?;
        self.clock.hear(now_ms);
        Ok(if newest > version { Step::More } else { Step::Idle })
    }

    /// Says goodbye, so that nobody waits for this instance.
    pub async fn leave(&self) -> Result<(), LedgerError> {
        self.ledger.leave(self.instance).await
    }
}
