//! Planning a sale: creating it, and pausing, resuming or closing it.

use std::time::Duration;

use super::refill::RefillSupervisor;
use super::{SaleError, Stores};
use crate::domain::ids::SaleId;
use crate::domain::sale::{NewSale, SaleStatus};

/// How long to wait for every instance to know of a change.
const PATIENCE: Duration = Duration::from_secs(5);

impl Stores {
    /// Creates a sale and fills its Redis; returns when every instance that is alive knows it. Says whether all do.
    pub async fn create_sale(&self, new: &NewSale, retire_after_ms: u64) -> Result<(SaleId, bool), SaleError> {
        let [purchase_key, waiting_key] = [random_key(), random_key()];
        let (sale, version) = self.ledger.create_sale(new, [&purchase_key, &waiting_key]).await?;
        // Serving instances do the same: whoever is first fills it, and the others find it whole.
        let mut supervisor = RefillSupervisor::new(self.clone(), retire_after_ms);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            match supervisor.look().await {
                Ok(()) => break,
                Err(SaleError::Busy(_)) if tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(error),
            }
        }
        let everyone = self.ledger.everyone_has(version, PATIENCE).await?;
        Ok((sale, everyone))
    }

    /// Adds units to a sale's stock and puts them up for sale; `false` when there is no such sale, or its stock is
    /// unlimited.
    pub async fn add_stock(&self, sale: SaleId, units: i32, actor: &str) -> Result<bool, SaleError> {
        let added = self.ledger.add_stock(sale, units, actor).await?;
        if added {
            // Workers do the same: whoever is first has released it.
            self.release_waves(100).await?;
        }
        Ok(added)
    }

    /// Removes a sale that nobody ever bought in, from every instance's memory too; `false` when there is none, or it has
    /// orders.
    pub async fn remove_sale(&self, sale: SaleId, actor: &str) -> Result<bool, SaleError> {
        let Some(version) = self.ledger.remove_sale(sale, actor).await? else { return Ok(false) };
        self.gate.delete_sale(sale).await?;
        self.ledger.everyone_has(version, PATIENCE).await?;
        Ok(true)
    }

    /// Pauses, resumes or closes a sale, in the ledger first; `false` when it does not exist or is closed for good.
    pub async fn set_sale_status(&self, sale: SaleId, status: SaleStatus, actor: &str) -> Result<bool, SaleError> {
        let Some(version) = self.ledger.set_sale_status(sale, status, actor).await? else { return Ok(false) };
        // A refill under way may have read the old status: say it again until a served epoch has taken it.
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while let Some(row) = self.ledger.epoch(sale).await? {
            let taken = self.gate.set_sale_state(sale, row.epoch, status).await?;
            if taken || tokio::time::Instant::now() >= deadline {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.ledger.everyone_has(version, PATIENCE).await?;
        Ok(true)
    }
}

/// 128 random bits: not to be guessed before the sale opens.
fn random_key() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
