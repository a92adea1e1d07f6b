//! Refills a sale in Redis from the ledger, under a new epoch (protocol, rule 11).

use std::time::Duration;

use super::{SaleError, Stores};
use crate::die_at;
use crate::domain::ids::{Epoch, SaleId};
use crate::domain::sale::SaleStatus;
use crate::gate::holds::TicketKind;
use crate::gate::refill::{ServerRun, TicketRow};
use crate::ledger::sales::epochs::EpochRow;

/// The lease of a refill's lock, which is renewed meanwhile. After the death of its instance, the sale stays closed this
/// long.
const REFILL_LEASE: Duration = Duration::from_secs(3);

/// Whether the sale's epoch was filled on this run of this server, and the server still serves it.
fn is_whole(row: &EpochRow, server: &ServerRun, standing: Option<(Epoch, SaleStatus)>) -> bool {
    row.run_id.as_deref() == Some(server.run_id()) && standing.is_some_and(|(epoch, _)| epoch == row.epoch)
}

impl Stores {
    /// Refills the sale unless it is whole on this server, and sets its status there to the ledger's.
    pub(super) async fn make_whole(
        &self,
        server: &mut ServerRun,
        row: &EpochRow,
        standing: Option<(Epoch, SaleStatus)>,
    ) -> Result<(), SaleError> {
        if !is_whole(row, server, standing) {
            return self.refill_once(server, row.sale).await;
        }
        if standing.is_some_and(|(_, status)| status != row.status) {
            self.gate.set_sale_state(row.sale, row.epoch, row.status).await?;
        }
        Ok(())
    }

    /// Removes from Redis the sales that ended more than `retire_after_ms` ago. Their orders stay in the ledger.
    pub async fn retire_sales(&self, retire_after_ms: u64) -> Result<(), SaleError> {
        self.ledger.retire_releases(retire_after_ms).await?;
        for row in self.ledger.retired(retire_after_ms).await? {
            self.gate.delete_sale(row.sale).await?;
            self.ledger.request_refill(row.sale, row.epoch).await?;
            tracing::info!(sale = %row.sale, "ended long ago; removed from Redis");
        }
        Ok(())
    }

    /// Refills a sale under a lock, unless another instance has done so meanwhile.
    async fn refill_once(&self, server: &mut ServerRun, sale: SaleId) -> Result<(), SaleError> {
        let lock = self.gate.lock(&format!("refill:{sale}"), REFILL_LEASE).await?;
        let Some(lock) = lock else { return Err(SaleError::Busy("refill")) };
        let row = self.ledger.epoch(sale).await?;
        let standing = server.sale_states(&[sale]).await?.pop().flatten();
        let refilled = match row {
            Some(row) if !is_whole(&row, server, standing) => self.refill(server, &row).await,
            Some(_) | None => Ok(()),
        };
        if let Err(error) = lock.release().await {
            tracing::debug!(%sale, %error, "refill lock not released; its lease ends by itself");
        }
        refilled
    }

    /// Raises the epoch, reads a snapshot of the ledger, writes it to Redis, opens the sale, and records the server.
    async fn refill(&self, server: &mut ServerRun, row: &EpochRow) -> Result<(), SaleError> {
        let (sale, began) = (row.sale, std::time::Instant::now());
        // Nothing more is sold at the old epoch: raising it would wait for ever new purchases.
        server.close(sale, row.epoch).await?;
        die_at!("refill.closed");
        let epoch = self.ledger.raise_epoch(sale).await?;
        die_at!("refill.raised");
        let snapshot = self.ledger.refill_snapshot(sale).await?;
        die_at!("refill.read");
        let Some(terms) = self.ledger.sale_figures(Some(sale), 1).await?.pop() else { return Ok(()) };
        let tickets: Vec<TicketRow> = snapshot
            .tickets
            .into_iter()
            .map(|t| {
                let kind = if t.live { TicketKind::Live } else { TicketKind::Ended };
                TicketRow { order: t.order, user: t.user, units: t.units, kind }
            })
            .collect();
        // Each step returns false once another refill has taken over.
        let not_overtaken = |current: bool| if current { Ok(()) } else { Err(SaleError::Busy("refill")) };
        not_overtaken(server.begin(sale, epoch).await?)?;
        die_at!("refill.begun");
        let began_at = tokio::time::Instant::now();
        not_overtaken(server.put_tickets(sale, epoch, &tickets).await?)?;
        die_at!("refill.put");
        if row.epoch > Epoch(0) {
            // An instance may remember that the old epoch was sold out, and does not know who holds tickets of the new
            // one: nothing is sold until every such memory has lapsed (rule 13).
            tokio::time::sleep_until(began_at + self.gate.sold_out_memory()).await;
        }
        // A Redis that was flushed meanwhile refuses no older epoch; the ledger knows the current one.
        let current = self.ledger.epoch(sale).await?.map(|row| row.epoch);
        not_overtaken(current == Some(epoch))?;
        not_overtaken(server.open(&terms.sale, epoch, snapshot.left, &snapshot.waves).await?)?;
        die_at!("refill.opened");
        not_overtaken(self.ledger.record_fill(sale, epoch, server.run_id()).await?)?;
        die_at!("refill.recorded");
        metrics::counter!("seckill_refills_total").increment(1);
        tracing::info!(
            %sale, epoch = epoch.0, left = snapshot.left.as_i64(), tickets = tickets.len(),
            took_ms = began.elapsed().as_millis(), "sale refilled"
        );
        let details = serde_json::json!({ "epoch": epoch.0, "left": snapshot.left.as_i64(), "tickets": tickets.len() });
        self.ledger.record("guard", "refill", &format!("sale {sale}"), details).await?;
        Ok(())
    }
}
