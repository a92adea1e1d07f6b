//! Keeps a Redis server from selling until all that it holds is known to be whole (protocol, rule 10).

use super::{SaleError, Stores};
use crate::die_at;
use crate::domain::ids::SaleId;
use crate::gate::refill::ServerRun;

/// Watches one Redis server, and refills the sales that are not whole on it.
pub struct RefillSupervisor {
    stores: Stores,
    retire_after_ms: u64,
    server: Option<ServerRun>,
}

impl RefillSupervisor {
    pub fn new(stores: Stores, retire_after_ms: u64) -> Self {
        Self { stores, retire_after_ms, server: None }
    }

    /// Checks all sales, refills those that are not whole, and then lets the server sell.
    ///
    /// # Errors
    /// `Busy` when another instance refills one of the sales.
    pub async fn check_sales(&mut self) -> Result<(), SaleError> {
        // While this connection lives, it leads to the same run of the same server.
        let mut server = match self.server.take() {
            Some(server) => server,
            None => self.stores.gate.connect_to_run().await?,
        };
        let loaded = server.is_reserve_loaded().await?;
        let epochs = self.stores.ledger.epochs(self.retire_after_ms).await?;
        let sales: Vec<SaleId> = epochs.iter().map(|row| row.sale).collect();
        let mut busy = None;
        for (row, standing) in epochs.iter().zip(server.sale_states(&sales).await?) {
            match self.stores.make_whole(&mut server, row, standing).await {
                Err(error @ SaleError::Busy(_)) => busy = Some(error),
                other => other?,
            }
        }
        if let Some(error) = busy {
            self.server = Some(server);
            return Err(error);
        }
        if !loaded {
            die_at!("refill.loaded");
            server.load_reserve().await?;
            tracing::info!(run_id = server.run_id(), sales = sales.len(), "this Redis server may sell");
        }
        self.server = Some(server);
        Ok(())
    }
}
