//! The sales that Redis keeps, a few at a time. Whatever is looked at again and again is looked at in turn, so that it costs the same
//! however many sales are planned, and little more where thousands sell.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::ids::SaleId;
use crate::ledger::{Ledger, LedgerError};

/// Sales in a turn, where turns come every second or two: 10,000 sales have theirs within some minutes.
pub(super) const SALES_A_TURN: usize = 50;
/// The ids of so many turns are read in one statement.
const TURNS_A_READ: usize = 10;
/// Sales that sell are looked at together, up to so many,
const SELLING_A_TURN: usize = 500;
/// and else in so many turns: two walks are over within the minute for which a sale is listed before it starts.
const SELLING_TURNS: usize = 10;
/// The list of those that sell is read before a walk, and no more often than this.
const SELLING_READ_APART: Duration = Duration::from_secs(5);
/// Comes before all sales.
const BEFORE_ALL: SaleId = SaleId::from_db(0);

/// Walks over all sales that Redis keeps, again and again.
pub struct SalesInTurn {
    limit: usize,
    /// Those of the next turns.
    ahead: VecDeque<SaleId>,
    /// The last one that was read; none of a walk that has not begun.
    last: SaleId,
}

/// The next sales.
pub(super) struct Turn {
    pub sales: Vec<SaleId>,
    /// Whether all others have had their turn since the walk began.
    pub is_last: bool,
}

impl SalesInTurn {
    /// `limit` is the number of sales in a turn.
    pub fn new(limit: usize) -> Self {
        Self { limit, ahead: VecDeque::new(), last: BEFORE_ALL }
    }

    pub(super) async fn next(&mut self, ledger: &Ledger) -> Result<Turn, LedgerError> {
        if self.ahead.is_empty() {
            let limit = self.limit * TURNS_A_READ;
            let sales = ledger.in_time(ledger.sales_in_redis(self.last, limit)).await?;
            self.last = sales.last().copied().filter(|_| sales.len() == limit).unwrap_or(BEFORE_ALL);
            self.ahead = sales.into();
        }
        let sales = self.ahead.drain(..self.limit.min(self.ahead.len())).collect();
        Ok(Turn { sales, is_last: self.ahead.is_empty() && self.last == BEFORE_ALL })
    }
}

/// Walks over the sales that sell, soon will or just did, again and again.
#[derive(Default)]
pub(super) struct SellingInTurn {
    /// Those of this walk, and how many of them have had their turn, or have it now.
    sales: Vec<SaleId>,
    passed: usize,
    reached: usize,
    read_at: Option<Instant>,
}

impl SellingInTurn {
    /// All of them, if they are no more than one turn has. The same ones again, until `passed` is called.
    pub async fn next(&mut self, ledger: &Ledger) -> Result<&[SaleId], LedgerError> {
        if self.passed >= self.sales.len() {
            if self.read_at.is_none_or(|read_at| read_at.elapsed() >= SELLING_READ_APART) {
                self.sales = ledger.in_time(ledger.selling_sales()).await?;
                self.read_at = Some(Instant::now());
            }
            self.passed = 0;
        }
        let length = self.sales.len().div_ceil(SELLING_TURNS).max(SELLING_A_TURN);
        self.reached = self.sales.len().min(self.passed + length);
        Ok(&self.sales[self.passed..self.reached])
    }

    /// The sales of this turn were looked at.
    pub fn passed(&mut self) {
        self.passed = self.reached;
    }
}
