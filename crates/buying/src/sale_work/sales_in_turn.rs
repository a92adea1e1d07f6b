//! The sales in Redis, a few at a time. Repeated checks take the sales in turn, so that a check costs the same for any number of planned
//! sales, and little more for thousands of live ones.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use seckill_domain::ids::SaleId;
use seckill_postgres::{LedgerError, Sales};

/// Sales per turn. With a turn every second or two, 10,000 sales are checked within minutes.
pub(super) const SALES_A_TURN: usize = 50;
const TURNS_A_READ: usize = 10;
/// Up to this many selling sales are checked together.
const SELLING_A_TURN: usize = 500;
/// More of them are divided into this many turns. Two walks end within a minute, which is how early a sale is listed before its start.
const SELLING_TURNS: usize = 10;
/// The shortest time between two reads of the list of selling sales.
const SELLING_READ_APART: Duration = Duration::from_secs(5);
const BEFORE_ALL: SaleId = SaleId::from_db(0);

/// Walks over all sales in Redis, without end.
pub struct SalesInTurn {
    limit: usize,
    ahead: VecDeque<SaleId>,
    /// The last id read; `BEFORE_ALL` before a walk.
    last: SaleId,
}

pub(super) struct Turn {
    pub(crate) sales: Vec<SaleId>,
    pub(crate) is_last: bool,
}

impl SalesInTurn {
    /// `limit`: sales per turn.
    pub fn new(limit: usize) -> Self {
        Self { limit, ahead: VecDeque::new(), last: BEFORE_ALL }
    }

    pub(super) async fn next(&mut self, sales: &Sales) -> Result<Turn, LedgerError> {
        if self.ahead.is_empty() {
            let limit = self.limit * TURNS_A_READ;
            let sales = sales.in_time(sales.sales_in_redis(self.last, limit)).await?;
            self.last = sales.last().copied().filter(|_| sales.len() == limit).unwrap_or(BEFORE_ALL);
            self.ahead = sales.into();
        }
        let sales = self.ahead.drain(..self.limit.min(self.ahead.len())).collect();
        Ok(Turn { sales, is_last: self.ahead.is_empty() && self.last == BEFORE_ALL })
    }
}

/// Walks over the sales that sell, start soon or have just ended, without end.
#[derive(Default)]
pub(super) struct SellingInTurn {
    /// The sales of this walk. `passed`: how many were checked. `reached`: the end of the current turn.
    sales: Vec<SaleId>,
    passed: usize,
    reached: usize,
    read_at: Option<Instant>,
}

impl SellingInTurn {
    /// All sales, if they fit into one turn. Returns the same sales until `passed` is called.
    pub(crate) async fn next(&mut self, sales: &Sales) -> Result<&[SaleId], LedgerError> {
        if self.passed >= self.sales.len() {
            if self.read_at.is_none_or(|read_at| read_at.elapsed() >= SELLING_READ_APART) {
                self.sales = sales.in_time(sales.selling_sales()).await?;
                self.read_at = Some(Instant::now());
            }
            self.passed = 0;
        }
        let length = self.sales.len().div_ceil(SELLING_TURNS).max(SELLING_A_TURN);
        self.reached = self.sales.len().min(self.passed + length);
        Ok(&self.sales[self.passed..self.reached])
    }

    /// To call when the sales of this turn were checked.
    pub(crate) fn passed(&mut self) {
        self.passed = self.reached;
    }
}
