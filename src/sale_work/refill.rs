//! Refills a sale in Redis from the ledger, under a new epoch (protocol, rule 11).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::die_at;
use crate::domain::ids::{DocId, Epoch, SaleId};
use crate::domain::sale::{Document, SaleStatus};
use crate::gate::holds::TicketKind;
use crate::gate::refill::{ServerRun, TicketRow};
use crate::ledger::sales::epochs::{EpochRow, RefillSnapshot};
use crate::sale::{SaleError, Stores};
use crate::sale_work::sales_in_turn::SalesInTurn;

/// The lease of a refill's lock, which is renewed meanwhile. After the death of its instance, the sale stays closed this
/// long, but not when the Redis server has been restarted since.
const REFILL_LEASE: Duration = Duration::from_secs(3);

/// Bounds how many refills use PostgreSQL at the same time. A refill waits for half a second without using it.
pub(super) type LedgerSlots = Arc<Semaphore>;

/// The lock of a sale's refill on one run of a server. What held it when the server was killed is over, and may be in its AOF.
pub fn lock_name(sale: SaleId, run_id: &str) -> String {
    format!("refill:{sale}:{run_id}")
}

/// Whether the sale's epoch was filled on this run of this server, and the server still serves it.
pub(super) fn is_whole(row: &EpochRow, server: &ServerRun, standing: Option<(Epoch, SaleStatus)>) -> bool {
    row.run_id.as_deref() == Some(server.run_id()) && standing.is_some_and(|(epoch, _)| epoch == row.epoch)
}

impl Stores {
    /// Removes from Redis those of the next sales in turn that ended more than `retire_after_ms` ago. Their orders stay in the ledger.
    pub async fn retire_sales(&self, in_turn: &mut SalesInTurn, retire_after_ms: u64) -> Result<(), SaleError> {
        self.ledger.retire_releases(retire_after_ms).await?;
        let sales = in_turn.next(&self.ledger).await?.sales;
        for row in self.ledger.retired(&sales, retire_after_ms).await? {
            self.gate.delete_sale(row.sale).await?;
            self.ledger.forget_sale(row.sale, row.epoch).await?;
            tracing::info!(sale = %row.sale, "ended long ago; removed from Redis");
        }
        Ok(())
    }

    /// Refills a sale under a lock, unless another instance has done so meanwhile.
    ///
    /// # Errors
    /// `Busy` when another instance refills the sale; `Overtaken` when one has done so meanwhile.
    pub(super) async fn refill_once(
        &self,
        server: &mut ServerRun,
        sale: SaleId,
        slots: &LedgerSlots,
    ) -> Result<(), SaleError> {
        let lock = self.gate.lock(&lock_name(sale, server.run_id()), REFILL_LEASE).await?;
        let Some(lock) = lock else { return Err(SaleError::Busy("refill")) };
        let refilled = self.refill_unless_whole(server, sale, slots).await;
        if let Err(error) = lock.release().await {
            tracing::debug!(%sale, %error, "refill lock not released; its lease ends by itself");
        }
        refilled
    }

    async fn refill_unless_whole(
        &self,
        server: &mut ServerRun,
        sale: SaleId,
        slots: &LedgerSlots,
    ) -> Result<(), SaleError> {
        let Some(row) = self.ledger.in_time(self.ledger.epoch(sale)).await? else { return Ok(()) };
        let standing = server.sale_states(&[sale]).await?.pop().flatten();
        if is_whole(&row, server, standing) { Ok(()) } else { self.refill(server, &row, slots).await }
    }

    /// Raises the epoch, reads a snapshot of the ledger, writes it to Redis, opens the sale, and records the server.
    async fn refill(&self, server: &mut ServerRun, row: &EpochRow, slots: &LedgerSlots) -> Result<(), SaleError> {
        let (sale, began, ledger) = (row.sale, Instant::now(), &self.ledger);
        // Each step returns false once another refill has taken over.
        let not_overtaken = |current: bool| if current { Ok(()) } else { Err(SaleError::Overtaken) };
        let slot = slots.acquire().await;
        // Nothing more is sold at the old epoch: raising it would wait for ever new purchases.
        server.close(sale, row.epoch).await?;
        die_at!("refill.closed");
        let epoch = ledger.in_time(ledger.raise_epoch(sale)).await?;
        die_at!("refill.raised");
        let mut snapshot = ledger.in_time(ledger.refill_snapshot(sale)).await?;
        die_at!("refill.read");
        not_overtaken(server.begin(sale, epoch).await?)?;
        die_at!("refill.begun");
        let begun_at = Instant::now();
        let tickets = self.put_tickets(server, sale, epoch, &mut snapshot).await?;
        die_at!("refill.put");
        let (left, waves) = (snapshot.left, std::mem::take(&mut snapshot.waves));
        drop(snapshot);
        drop(slot);
        if row.epoch > Epoch(0) {
            // An instance may remember that the old epoch was sold out, and does not know who holds tickets of the new
            // one: nothing is sold until every such memory has lapsed (rule 13).
            tokio::time::sleep_until(begun_at + self.gate.sold_out_memory()).await;
        }
        let _slot = slots.acquire().await;
        let (document, version) = ledger.in_time(ledger.document(DocId::Sale(sale.get()))).await?;
        let Some(Document::Sale(terms)) = document else { return Ok(()) };
        // A Redis that was flushed meanwhile refuses no older epoch; the ledger knows the current one.
        let current = ledger.in_time(ledger.epoch(sale)).await?.map(|row| row.epoch);
        not_overtaken(current == Some(epoch))?;
        not_overtaken(server.open(&terms, version, epoch, left, &waves).await?)?;
        die_at!("refill.opened");
        not_overtaken(ledger.in_time(ledger.record_fill(sale, epoch, server.run_id())).await?)?;
        die_at!("refill.recorded");
        metrics::counter!("seckill_refills_total").increment(1);
        tracing::info!(
            %sale, epoch = epoch.0, left = left.as_i64(), tickets, took_ms = began.elapsed().as_millis(), "sale refilled"
        );
        let details = serde_json::json!({ "epoch": epoch.0, "left": left.as_i64(), "tickets": tickets });
        ledger.in_time(ledger.record("refill supervisor", "refill", &format!("sale {sale}"), details)).await?;
        Ok(())
    }

    /// Puts the tickets into Redis, page by page. Returns how many.
    async fn put_tickets(
        &self,
        server: &mut ServerRun,
        sale: SaleId,
        epoch: Epoch,
        snapshot: &mut RefillSnapshot,
    ) -> Result<usize, SaleError> {
        let mut count = 0;
        loop {
            let page = self.ledger.in_time(snapshot.next_tickets()).await?;
            if page.is_empty() {
                return Ok(count);
            }
            count += page.len();
            let rows: Vec<TicketRow> = page
                .into_iter()
                .map(|t| {
                    let kind = if t.live { TicketKind::Live } else { TicketKind::Ended };
                    TicketRow { order: t.order, user: t.user, units: t.units, kind, lapsed_at_ms: t.lapsed_at_ms }
                })
                .collect();
            if !server.put_tickets(sale, epoch, snapshot.asks_pass, &rows).await? {
                return Err(SaleError::Overtaken);
            }
        }
    }
}
