//! Clears old data, one page per table and step.

use uuid::Uuid;

use crate::ledger::LedgerError;
use crate::ledger::sales::retention::Cursor;
use crate::sale::{SaleError, Step, Stores};

/// The days until data is cleared. Messages of a sale count from its end, steps from the clearing of its messages, and records for people
/// from their own time.
#[derive(Debug, Clone, Copy)]
pub struct RetentionTerms {
    pub messages_days: i32,
    pub steps_days: i32,
    pub records_days: i32,
}

/// Walks over the tables without end.
pub struct Retention {
    stores: Stores,
    terms: RetentionTerms,
    outbox: Cursor,
    steps: Cursor,
    lapsed_holds: Uuid,
    groups: Uuid,
    buyers: Cursor,
    outflow_items: Uuid,
    records: Cursor,
    /// How many of the next steps are skipped.
    rest: u32,
}

/// Steps to skip after a walk that found nothing to clear.
const REST: u32 = 4;

impl Retention {
    pub fn new(stores: Stores, terms: RetentionTerms) -> Self {
        Self {
            stores,
            terms,
            outbox: 0,
            steps: 0,
            lapsed_holds: Uuid::nil(),
            groups: Uuid::nil(),
            buyers: 0,
            outflow_items: Uuid::nil(),
            records: 0,
            rest: 0,
        }
    }

    /// Clears one page of each table. A failing table does not stop the others.
    ///
    /// # Errors
    /// The first table's error.
    pub async fn step(&mut self) -> Result<Step, SaleError> {
        if self.rest > 0 {
            self.rest -= 1;
            return Ok(Step::Idle);
        }
        let (ledger, terms) = (&self.stores.ledger, self.terms);
        let marked = ledger.mark_cleared(terms.messages_days, terms.steps_days).await;
        let messages = ledger.clear_processed_messages(terms.messages_days).await;
        let outflow_items = ledger.clear_outflow_items(self.outflow_items, terms.messages_days).await;
        let pages = [
            ("outbox", walk(ledger.clear_outbox(self.outbox).await, &mut self.outbox)),
            ("steps", walk(ledger.clear_steps(self.steps).await, &mut self.steps)),
            ("lapsed-holds", walk(ledger.clear_lapsed_holds(self.lapsed_holds).await, &mut self.lapsed_holds)),
            ("groups", walk(ledger.clear_groups(self.groups).await, &mut self.groups)),
            ("buyers", walk(ledger.clear_buyers(self.buyers).await, &mut self.buyers)),
            ("outflow-items", walk(outflow_items, &mut self.outflow_items)),
            ("records", walk(ledger.clear_records(self.records, terms.records_days).await, &mut self.records)),
            ("audit-log", ledger.clear_audit_log(terms.records_days).await),
            ("messages", messages),
        ];
        let is_at_the_end = self.outbox == 0 && self.steps == 0;
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
fn walk<C>(page: Result<(C, u64), LedgerError>, cursor: &mut C) -> Result<u64, LedgerError> {
    let (next, rows) = page?;
    *cursor = next;
    Ok(rows)
}
