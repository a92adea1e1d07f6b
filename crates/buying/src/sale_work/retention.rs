//! Clears old data, one page per table and step.

use uuid::Uuid;

use crate::sale::{SaleError, Step, Stores};
use seckill_postgres::LedgerError;
use seckill_postgres::sales::retention::{Cursor, Page};

/// Messages of a sale count from its end, steps from the clearing of its messages, and records from their own time.
#[derive(Debug, Clone, Copy)]
pub struct RetentionTimes {
    pub messages_days: i32,
    pub steps_days: i32,
    pub records_days: i32,
}

/// Walks over the tables without end.
pub struct Retention {
    stores: Stores,
    times: RetentionTimes,
    at: Cursors,
    /// How many of the next steps are skipped.
    rest: u32,
}

#[derive(Default)]
struct Cursors {
    outbox: Cursor,
    steps: Cursor,
    lapsed_holds: Uuid,
    groups: Uuid,
    buyers: Cursor,
    outflow_items: Uuid,
    records: Cursor,
}

/// Steps to skip after a walk that found nothing to clear.
const REST: u32 = 4;

impl Retention {
    pub fn new(stores: Stores, times: RetentionTimes) -> Self {
        Self { stores, times, at: Cursors::default(), rest: 0 }
    }

    /// Clears one page of each table. A failing table does not stop the others. Returns the first error.
    pub async fn step(&mut self) -> Result<Step, SaleError> {
        if self.rest > 0 {
            self.rest -= 1;
            return Ok(Step::Idle);
        }
        let (ledger, times, at) = (&self.stores.ledger, self.times, &mut self.at);
        let marked = ledger.sales.mark_cleared(times.messages_days, times.steps_days).await;
        let messages = ledger.sales.clear_processed_messages(times.messages_days).await;
        let outflow_items = ledger.sales.clear_outflow_items(at.outflow_items, times.messages_days).await;
        let pages = [
            ("outbox", walk(ledger.sales.clear_outbox(at.outbox).await, &mut at.outbox)),
            ("steps", walk(ledger.sales.clear_steps(at.steps).await, &mut at.steps)),
            ("lapsed-holds", walk(ledger.sales.clear_lapsed_holds(at.lapsed_holds).await, &mut at.lapsed_holds)),
            ("groups", walk(ledger.sales.clear_groups(at.groups).await, &mut at.groups)),
            ("buyers", walk(ledger.sales.clear_buyers(at.buyers).await, &mut at.buyers)),
            ("outflow-items", walk(outflow_items, &mut at.outflow_items)),
            ("records", walk(ledger.sales.clear_records(at.records, times.records_days).await, &mut at.records)),
            ("audit-log", ledger.sales.clear_audit_log(times.records_days).await),
            ("messages", messages),
        ];
        let is_at_the_end = at.outbox == 0 && at.steps == 0;
        let (mut all, mut failed) = (0, marked.err());
        for (what, cleared) in pages {
            match cleared {
                Ok(rows) => {
                    metrics::counter!("seckill_cleared_total", "what" => what).increment(rows);
                    all += rows;
                }
                Err(error) => {
                    tracing::warn!(what, %error, "not cleared; tried again");
                    failed.get_or_insert(error);
                }
            }
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        if is_at_the_end && all == 0 {
            self.rest = REST;
        }
        Ok(Step::Idle)
    }
}

/// Moves the cursor to the end of the page. Returns the number of cleared rows.
fn walk<C: Default>(page: Result<Page<C>, LedgerError>, cursor: &mut C) -> Result<u64, LedgerError> {
    let page = page?;
    *cursor = page.next.unwrap_or_default();
    Ok(page.gone.unsigned_abs())
}
