//! Filling a sale's Redis from the ledger, and keeping a server shut that may have forgotten (protocol, rules 10, 11).

use std::time::Duration;

use super::{SaleError, Stores};
use crate::die_at;
use crate::domain::ids::{Epoch, SaleId};
use crate::domain::sale::SaleStatus;
use crate::gate::holds::TicketKind;
use crate::gate::refill::{ServerRun, TicketRow};
use crate::ledger::sales::epochs::EpochRow;

/// Renewed while a refill goes on; when its instance dies in the middle, the sale stays closed for as long.
const REFILL_LEASE: Duration = Duration::from_secs(3);

/// Watches one Redis server, and refills what is not whole on it.
pub struct RefillSupervisor {
    stores: Stores,
    retire_after_ms: u64,
    fence: Option<ServerRun>,
}

impl RefillSupervisor {
    pub fn new(stores: Stores, retire_after_ms: u64) -> Self {
        Self { stores, retire_after_ms, fence: None }
    }

    /// One look at everything; afterwards, unless it fails, this server sells all that it should.
    pub async fn look(&mut self) -> Result<(), SaleError> {
        // As long as this connection lives it leads to the same run of the same server.
        let mut fence = match self.fence.take() {
            Some(fence) => fence,
            None => self.stores.gate.connect_to_run().await?,
        };
        let loaded = fence.is_reserve_loaded().await?;
        let epochs = self.stores.ledger.epochs(self.retire_after_ms).await?;
        let sales: Vec<SaleId> = epochs.iter().map(|row| row.sale).collect();
        let mut busy = None;
        for (row, standing) in epochs.iter().zip(fence.sale_states(&sales).await?) {
            match self.stores.make_whole(&mut fence, row, standing).await {
                Err(error @ SaleError::Busy(_)) => busy = Some(error),
                other => other?,
            }
        }
        if let Some(error) = busy {
            self.fence = Some(fence);
            return Err(error);
        }
        if !loaded {
            die_at!("refill.loaded");
            fence.load_reserve().await?;
            tracing::info!(run_id = fence.run_id(), sales = sales.len(), "this Redis may sell");
        }
        self.fence = Some(fence);
        Ok(())
    }
}

/// Whether the ledger's epoch was filled on this run of this server, and is served by it.
fn is_whole(row: &EpochRow, fence: &ServerRun, standing: Option<(Epoch, SaleStatus)>) -> bool {
    row.run_id.as_deref() == Some(fence.run_id()) && standing.is_some_and(|(epoch, _)| epoch == row.epoch)
}

impl Stores {
    /// Sees to it that one sale stands on this server as the ledger says.
    async fn make_whole(
        &self,
        fence: &mut ServerRun,
        row: &EpochRow,
        standing: Option<(Epoch, SaleStatus)>,
    ) -> Result<(), SaleError> {
        if !is_whole(row, fence, standing) {
            return self.refill_once(fence, row.sale).await;
        }
        if standing.is_some_and(|(_, status)| status != row.status) {
            self.gate.set_sale_state(row.sale, row.epoch, row.status).await?;
        }
        Ok(())
    }

    /// Throws away what Redis keeps of sales that are long over. Their orders stay where they are.
    pub async fn retire_sales(&self, retire_after_ms: u64) -> Result<(), SaleError> {
        self.ledger.retire_releases(retire_after_ms).await?;
        for row in self.ledger.retired(retire_after_ms).await? {
            self.gate.delete_sale(row.sale).await?;
            self.ledger.doubt(row.sale, row.epoch).await?;
            tracing::info!(sale = %row.sale, "long over, and no longer kept in Redis");
        }
        Ok(())
    }

    /// Refills a sale, unless somebody else has done so, or is at it.
    async fn refill_once(&self, fence: &mut ServerRun, sale: SaleId) -> Result<(), SaleError> {
        let lock = self.gate.lock(&format!("refill:{sale}"), REFILL_LEASE).await?;
        let Some(lock) = lock else { return Err(SaleError::Busy("refill")) };
        let row = self.ledger.epoch(sale).await?;
        let standing = fence.sale_states(&[sale]).await?.pop().flatten();
        let done = match row {
            Some(row) if is_whole(&row, fence, standing) => Ok(()),
            Some(row) => self.refill(fence, &row).await,
            None => Ok(()),
        };
        if let Err(error) = lock.release().await {
            tracing::debug!(%sale, %error, "refill lock left to its lease");
        }
        done
    }

    /// Raises the epoch, reads one moment of the ledger, writes it, opens, and records where.
    async fn refill(&self, fence: &mut ServerRun, row: &EpochRow) -> Result<(), SaleError> {
        let (sale, began) = (row.sale, std::time::Instant::now());
        // Nothing more is sold at the old epoch, so that raising it does not wait behind ever new purchases.
        fence.close(sale, row.epoch).await?;
        die_at!("refill.closed");
        let epoch = self.ledger.raise_epoch(sale).await?;
        die_at!("refill.raised");
        let from = self.ledger.fill_from(sale).await?;
        die_at!("refill.read");
        let Some(terms) = self.ledger.sale_figures(Some(sale), 1).await?.pop() else { return Ok(()) };
        let tickets: Vec<TicketRow> = from
            .tickets
            .into_iter()
            .map(|t| {
                let kind = if t.live { TicketKind::Live } else { TicketKind::Ended };
                TicketRow { order: t.order, user: t.user, units: t.units, kind }
            })
            .collect();
        // Each step says no where another fill has taken over.
        let overtaken = |done: bool| if done { Ok(()) } else { Err(SaleError::Busy("refill")) };
        overtaken(fence.begin(sale, epoch).await?)?;
        die_at!("refill.begun");
        let forgotten_at = tokio::time::Instant::now();
        overtaken(fence.put_tickets(sale, epoch, &tickets).await?)?;
        die_at!("refill.put");
        if row.epoch > Epoch(0) {
            // An instance may remember the old epoch's "sold out", and does not know who will hold the new one's
            // tickets: nothing is sold until none does (rule 13).
            tokio::time::sleep_until(forgotten_at + self.gate.sold_out_memory()).await;
        }
        // Redis has refused nothing if it was flushed once more meanwhile; the ledger knows.
        let current = self.ledger.epoch(sale).await?.map(|row| row.epoch);
        overtaken(current == Some(epoch))?;
        overtaken(fence.open(&terms.sale, epoch, from.left, &from.waves).await?)?;
        die_at!("refill.opened");
        overtaken(self.ledger.record_fill(sale, epoch, fence.run_id()).await?)?;
        die_at!("refill.recorded");
        metrics::counter!("seckill_refills_total").increment(1);
        tracing::info!(
            %sale, epoch = epoch.0, left = from.left.as_i64(), tickets = tickets.len(),
            took_ms = began.elapsed().as_millis(), "sale filled"
        );
        let details = serde_json::json!({ "epoch": epoch.0, "left": from.left.as_i64(), "tickets": tickets.len() });
        self.ledger.record("guard", "refill", &format!("sale {sale}"), details).await?;
        Ok(())
    }
}
