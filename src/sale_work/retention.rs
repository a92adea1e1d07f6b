//! Clears the messages and steps of sales that ended long ago, a page at a time.

use uuid::Uuid;

use crate::ledger::sales::retention::Cursor;
use crate::sale::{SaleError, Step, Stores};

/// The days after which something is cleared: messages after the end of their sale, and steps after that.
#[derive(Debug, Clone, Copy)]
pub struct RetentionTerms {
    pub messages_days: i32,
    pub steps_days: i32,
}

/// Walks over the tables, again and again.
pub struct Retention {
    stores: Stores,
    terms: RetentionTerms,
    outbox: Cursor,
    steps: Cursor,
    lapsed_holds: Uuid,
    /// How many of the next steps are left out.
    rest: u32,
}

/// Steps that are left out when the walk has come to the end of the tables, and has just found nothing to clear.
const REST: u32 = 4;

impl Retention {
    pub fn new(stores: Stores, terms: RetentionTerms) -> Self {
        Self { stores, terms, outbox: 0, steps: 0, lapsed_holds: Uuid::nil(), rest: 0 }
    }

    /// Clears one page of each table.
    pub async fn step(&mut self) -> Result<Step, SaleError> {
        if self.rest > 0 {
            self.rest -= 1;
            return Ok(Step::Idle);
        }
        let (ledger, terms) = (&self.stores.ledger, self.terms);
        ledger.mark_cleared(terms.messages_days, terms.steps_days).await?;
        let (outbox, rows) = ledger.clear_outbox(self.outbox).await?;
        let (steps, old_steps) = ledger.clear_steps(self.steps).await?;
        let messages = ledger.clear_processed_messages(terms.messages_days).await?;
        let (lapsed_holds, old_lapses) = ledger.clear_lapsed_holds(self.lapsed_holds).await?;
        let groups = ledger.clear_groups().await?;
        let cleared = [
            ("outbox", rows),
            ("steps", old_steps),
            ("messages", messages),
            ("lapsed-holds", old_lapses),
            ("groups", groups),
        ];
        for (what, cleared) in cleared {
            metrics::counter!("seckill_cleared_total", "what" => what).increment(cleared);
        }
        let is_at_the_end = outbox == 0 && steps == 0;
        if is_at_the_end && cleared.iter().all(|(_, rows)| *rows == 0) {
            self.rest = REST;
        }
        (self.outbox, self.steps, self.lapsed_holds) = (outbox, steps, lapsed_holds);
        Ok(Step::Idle)
    }
}
