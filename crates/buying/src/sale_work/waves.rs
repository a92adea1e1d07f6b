//! Releases waves of stock when they are due (protocol, rule 14).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sale::{SaleError, Step, Stores};
use seckill_domain::ids::SaleId;
use seckill_domain::locked_sales::LockedSales;
use seckill_postgres::notices::Topic;

/// How often waves are read at least, because new ones may be planned. The ledger looks this far ahead.
const LOOK_EVERY: Duration = Duration::from_secs(1);

const FAILED_FOR: Duration = Duration::from_secs(10);

/// Remembers when the next wave is due, so that PostgreSQL is rarely asked.
pub struct WaveWatch {
    stores: Stores,
    /// Sales with a locked row. Their waves are released later, so that other sales do not wait for the same lock.
    locked: Arc<LockedSales>,
    /// Sales with a failed release. Their waves pause too.
    failed: LockedSales,
    waves_max: i64,
    next_look: Instant,
}

impl WaveWatch {
    pub fn new(stores: Stores, locked: Arc<LockedSales>, waves_max: i64) -> Self {
        Self { stores, locked, failed: LockedSales::new(FAILED_FOR), waves_max, next_look: Instant::now() }
    }

    pub async fn release_due(&mut self) -> Result<Step, SaleError> {
        let now = Instant::now();
        if now < self.next_look {
            return Ok(Step::Idle);
        }
        let later: Vec<SaleId> = self.locked.all().into_iter().chain(self.failed.all()).collect();
        let due = self.stores.ledger.sales.due_waves(self.waves_max, &later).await?;
        let mut released = 0;
        for sale in due.sales {
            match self.stores.release_waves(sale).await {
                Ok(waves) => released += waves,
                Err(error) if error.is_locked() => {
                    tracing::error!(%sale, "the sale is locked by another transaction; its waves are released later");
                    self.locked.insert(sale);
                }
                Err(error) if error.is_outage() => return Err(error),
                Err(error) => {
                    tracing::error!(%sale, %error, "waves not released; tried again later");
                    self.failed.insert(sale);
                }
            }
        }
        self.next_look = now + due.next_in.map_or(LOOK_EVERY, |next_in| next_in.min(LOOK_EVERY));
        Ok(Step::after(released, usize::try_from(self.waves_max).unwrap_or(usize::MAX)))
    }
}

impl Stores {
    /// Releases the due waves of a sale. Returns how many.
    pub(crate) async fn release_waves(&self, sale: SaleId) -> Result<usize, SaleError> {
        let released = self.ledger.sales.release_waves(sale).await?;
        if released > 0 {
            tracing::info!(%sale, waves = released, "waves released");
            self.ledger.notify(Topic::Outbox).await?;
        }
        Ok(released)
    }
}
