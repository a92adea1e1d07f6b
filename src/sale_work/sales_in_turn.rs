//! The sales that Redis keeps, a few at a time. What nobody asks for is looked at in turn, so that it costs the same however many sales
//! are planned.

use crate::domain::ids::SaleId;
use crate::ledger::{Ledger, LedgerError};

/// Sales in a turn, where turns come every second or two: 10,000 sales have theirs within some minutes.
pub(super) const SALES_A_TURN: i64 = 50;
/// Comes before all sales.
const BEFORE_ALL: SaleId = SaleId::from_db(0);

/// Walks over the sales, again and again.
pub struct SalesInTurn {
    limit: i64,
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
    pub fn new(limit: i64) -> Self {
        Self { limit, last: BEFORE_ALL }
    }

    pub(super) async fn next(&mut self, ledger: &Ledger) -> Result<Turn, LedgerError> {
        let sales = ledger.in_time(ledger.sales_in_redis(self.last, self.limit)).await?;
        let is_last = i64::try_from(sales.len()).unwrap_or(i64::MAX) < self.limit;
        self.last = sales.last().copied().filter(|_| !is_last).unwrap_or(BEFORE_ALL);
        Ok(Turn { sales, is_last })
    }
}
