//! Refills a sale in Redis from the ledger, under a new epoch (protocol, rule 11).

mod queue;
pub mod supervisor;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::sale::{SaleError, Stores};
use crate::sale_work::sales_in_turn::SalesInTurn;
use seckill_domain::ids::{DocId, Epoch, Shard};
use seckill_domain::sale::Document;
use seckill_domain::shards::SaleShards;
use seckill_postgres::sales::epochs::{EpochRow, LedgerTicket, RefillSnapshot};
use seckill_redis::refill::{PutKind, TicketRow};
use seckill_redis::server_runs::{SaleState, ServerRuns, has_no_master};
use seckill_runtime::die_at;

/// The lease of a refill's lock, renewed during the refill. If its instance dies, the sale stays closed this long.
pub(super) const REFILL_LEASE: Duration = Duration::from_secs(3);

const PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// With more orders, a refill takes seconds or minutes.
const LONG: i64 = 100_000;

/// Limits the refills that use PostgreSQL at once. Long ones have their own limit, so that they take no place of others.
#[derive(Clone)]
pub(super) struct LedgerSlots {
    pub(crate) short: Arc<Semaphore>,
    pub(crate) long: Arc<Semaphore>,
}

/// The lock of a sale's refill, at the sale's first shard. The run ids make a lock void that a restarted server has read from its AOF.
pub fn lock_name(of: SaleShards, run_id: &str) -> String {
    format!("refill:{{{}}}:{run_id}", of.tag(Shard::FIRST))
}

/// Whether the sale's epoch was filled on these server runs, and they still serve it.
pub(super) fn is_whole(row: &EpochRow, servers: &ServerRuns, state: SaleState) -> bool {
    let is_served = matches!(state, SaleState::Served(standing) if standing.epoch == row.epoch);
    is_served && row.run_id.is_some() && row.run_id == servers.run_id(row.shards)
}

impl Stores {
    /// Looks at the next sales in turn. Sales that ended at least `retire_after_ms` ago are dropped from Redis.
    pub async fn retire_sales(&self, in_turn: &mut SalesInTurn, retire_after_ms: u64) -> Result<(), SaleError> {
        let sales = in_turn.next(&self.ledger.sales).await?.sales;
        for row in self.ledger.sales.retired(&sales, retire_after_ms).await? {
            self.gate.delete_sale(row.shards).await?;
            self.ledger.sales.forget_sale(row.sale, row.epoch).await?;
            tracing::info!(sale = %row.sale, "ended long ago; removed from Redis");
        }
        Ok(())
    }

    /// Refills a sale under a lock. Errors: `Busy` if another instance refills it, `Overtaken` if one has done so meanwhile.
    pub(super) async fn refill_once(
        &self,
        servers: &mut ServerRuns,
        of: SaleShards,
        slots: &LedgerSlots,
    ) -> Result<(), SaleError> {
        let sale = of.sale;
        let run_id = servers.run_id(of).ok_or_else(has_no_master)?;
        let lock = self.gate.lock(&lock_name(of, &run_id), REFILL_LEASE).await?;
        let Some(lock) = lock else { return Err(SaleError::Busy("refill")) };
        let refill = async {
            let Some(row) = self.ledger.in_time(self.ledger.sales.epoch(sale)).await? else { return Ok(()) };
            let state = servers.sale_states(&[row.shards]).await?.pop().unwrap_or(SaleState::Unknown);
            if is_whole(&row, servers, state) { Ok(()) } else { self.refill(servers, &run_id, &row, slots).await }
        };
        let refilled = refill.await;
        if let Err(error) = lock.release().await {
            tracing::debug!(%sale, %error, "refill lock not released; its lease ends by itself");
        }
        refilled
    }

    /// Raises the epoch, reads a snapshot of the ledger, writes it to Redis, records the server runs, and opens the sale. The record comes
    /// before the opening: commits of an open sale share the lock of its epoch row all the time, so that no change gets through.
    async fn refill(
        &self,
        servers: &ServerRuns,
        run_id: &str,
        row: &EpochRow,
        slots: &LedgerSlots,
    ) -> Result<(), SaleError> {
        let (sale, of, began, ledger) = (row.sale, row.shards, Instant::now(), &self.ledger);
        // Each step returns false after another refill has taken over.
        let not_overtaken = |current: bool| if current { Ok(()) } else { Err(SaleError::Overtaken) };
        let is_long = ledger.in_time(ledger.sales.has_orders(sale, LONG)).await?;
        let slots = if is_long { &slots.long } else { &slots.short };
        let slot = slots.acquire().await;
        // Stops sales under the old epoch. Otherwise new purchases could delay the raise for ever.
        servers.close(of, row.epoch).await?;
        die_at!("refill.closed");
        let epoch = ledger.in_time(ledger.sales.raise_epoch(sale)).await?;
        die_at!("refill.raised");
        let mut snapshot = ledger.in_time(ledger.sales.refill_snapshot(sale)).await?;
        die_at!("refill.read");
        not_overtaken(servers.begin(of, epoch).await?)?;
        die_at!("refill.begun");
        let begun_at = Instant::now();
        let tickets = self.put_tickets(servers, of, epoch, &mut snapshot).await?;
        die_at!("refill.put");
        let (left, waves) = (snapshot.left()?, std::mem::take(&mut snapshot.waves));
        drop(snapshot);
        drop(slot);
        if row.epoch > Epoch(0) {
            // An instance may remember that the old epoch was sold out. Nothing is sold until every such memory has expired (rule 13).
            tokio::time::sleep_until(begun_at + self.gate.sold_out_memory(of)).await;
        }
        let _slot = slots.acquire().await;
        let (document, version) = ledger.in_time(ledger.sales.document(DocId::Sale(sale.get()))).await?;
        let Some(Document::Sale(terms)) = document else { return Ok(()) };
        // A Redis that was flushed meanwhile accepts old epochs. The ledger knows the current one.
        not_overtaken(ledger.in_time(ledger.sales.record_fill(sale, epoch, run_id)).await?)?;
        die_at!("refill.recorded");
        not_overtaken(servers.open(&terms, version, epoch, left, &waves).await?)?;
        die_at!("refill.opened");
        metrics::counter!("seckill_refills_total").increment(1);
        tracing::info!(
            %sale, epoch = epoch.0, left = left.as_i64(), tickets, took_ms = began.elapsed().as_millis(), "sale refilled"
        );
        let details = serde_json::json!({ "epoch": epoch.0, "left": left.as_i64(), "tickets": tickets });
        ledger.in_time(ledger.accounts.record("refill supervisor", "refill", &format!("sale {sale}"), details)).await?;
        Ok(())
    }

    /// Writes the tickets to Redis, page by page. Returns how many.
    async fn put_tickets(
        &self,
        servers: &ServerRuns,
        of: SaleShards,
        epoch: Epoch,
        snapshot: &mut RefillSnapshot,
    ) -> Result<usize, SaleError> {
        let (mut count, mut reported) = (0, Instant::now());
        let mut page = self.ledger.while_it_answers(snapshot.next_tickets()).await?;
        while !page.is_empty() {
            count += page.len();
            metrics::counter!("seckill_refill_tickets_total").increment(page.len() as u64);
            if reported.elapsed() >= PROGRESS_EVERY {
                reported = Instant::now();
                tracing::info!(sale = %of.sale, epoch = epoch.0, tickets = count, "sale being refilled");
            }
            let rows = by_shard(of, page);
            let put = try_join_all(rows.iter().map(|(shard, rows)| servers.put_tickets(of, *shard, epoch, rows)));
            // Reads the next page while this one is written.
            let (put, next) = tokio::join!(put, self.ledger.while_it_answers(snapshot.next_tickets()));
            if put?.contains(&false) {
                return Err(SaleError::Overtaken);
            }
            page = next?;
        }
        Ok(count)
    }
}

/// Divides tickets by shard. Each ticket is written at its buyer's home, and at the shard that holds or held the units.
fn by_shard(of: SaleShards, page: Vec<LedgerTicket>) -> BTreeMap<Shard, Vec<TicketRow>> {
    let mut rows: BTreeMap<Shard, Vec<TicketRow>> = BTreeMap::new();
    for LedgerTicket { order, user, units, shard, live, lapsed_at_ms } in page {
        let home = of.home(&user);
        let (at_home, at_lender) = match (home == shard, live) {
            (true, true) => (PutKind::Live, None),
            (true, false) => (PutKind::Ended, None),
            (false, true) => (PutKind::Borrowed(shard), Some(PutKind::Lent)),
            (false, false) => (PutKind::Ended, Some(PutKind::LentEnded)),
        };
        if let Some(kind) = at_lender {
            let row = TicketRow { order, user: user.clone(), units, kind, lapsed_at_ms: None };
            rows.entry(shard).or_default().push(row);
        }
        rows.entry(home).or_default().push(TicketRow { order, user, units, kind: at_home, lapsed_at_ms });
    }
    rows
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use seckill_domain::ids::{OrderId, SaleId};
    use seckill_domain::shards::ShardCount;

    #[test]
    fn a_ticket_is_written_at_home_and_where_its_units_are() {
        let of = SaleShards { sale: SaleId::from_db(42), count: ShardCount::parse(8).unwrap(), asks_pass: false };
        let home = of.home("ann");
        let other = of.count.all().find(|shard| *shard != home).unwrap();
        let written = |shard, live| {
            let order = OrderId(Uuid::nil());
            let ticket = LedgerTicket { order, user: "ann".to_owned(), units: 1, shard, live, lapsed_at_ms: Some(5) };
            let rows = by_shard(of, vec![ticket])
                .into_iter()
                .flat_map(|(at, rows)| rows.into_iter().map(move |row| (at, row.kind, row.lapsed_at_ms)));
            let mut rows: Vec<_> = rows.collect();
            rows.sort_by_key(|(at, ..)| *at != home);
            rows
        };
        assert_eq!(written(home, true), [(home, PutKind::Live, Some(5))]);
        assert_eq!(written(home, false), [(home, PutKind::Ended, Some(5))]);
        let borrowed = [(home, PutKind::Borrowed(other), Some(5)), (other, PutKind::Lent, None)];
        assert_eq!(written(other, true), borrowed);
        assert_eq!(written(other, false), [(home, PutKind::Ended, Some(5)), (other, PutKind::LentEnded, None)]);
    }
}
