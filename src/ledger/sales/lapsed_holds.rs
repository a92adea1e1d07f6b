//! Holds that nobody paid in time, by who took them (protocol, rule 17).

use crate::domain::ids::SaleId;
use crate::ledger::{Ledger, LedgerError};

/// The lapsed holds of one buyer, or of one network address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LapsedHolds {
    /// The buyer or the address; `None` where the address is not known.
    pub of: Option<String>,
    pub holds: i64,
    pub units: i64,
    /// How many different buyers at the address, or addresses of the buyer.
    pub others: i64,
    pub last_lapsed_at_ms: i64,
}

impl Ledger {
    /// The lapsed holds of a sale by buyer, most holds first.
    pub async fn lapsed_by_buyer(&self, sale: SaleId, limit: i64) -> Result<Vec<LapsedHolds>, LedgerError> {
        Ok(sqlx::query_as!(
            LapsedHolds,
            r#"SELECT user_id AS of, count(*) AS "holds!", sum(quantity)::bigint AS "units!",
                      count(DISTINCT address) AS "others!",
                      (extract(epoch FROM max(lapsed_at)) * 1000)::bigint AS "last_lapsed_at_ms!"
               FROM lapsed_holds WHERE sale_id = $1
               GROUP BY user_id ORDER BY count(*) DESC, max(lapsed_at) DESC, user_id LIMIT $2"#,
            sale.get(),
            limit
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// The lapsed holds of a sale by the network address that they were taken from, likewise.
    pub async fn lapsed_by_address(&self, sale: SaleId, limit: i64) -> Result<Vec<LapsedHolds>, LedgerError> {
        Ok(sqlx::query_as!(
            LapsedHolds,
            r#"SELECT address AS of, count(*) AS "holds!", sum(quantity)::bigint AS "units!",
                      count(DISTINCT user_id) AS "others!",
                      (extract(epoch FROM max(lapsed_at)) * 1000)::bigint AS "last_lapsed_at_ms!"
               FROM lapsed_holds WHERE sale_id = $1
               GROUP BY address ORDER BY count(*) DESC, max(lapsed_at) DESC, address LIMIT $2"#,
            sale.get(),
            limit
        )
        .fetch_all(&self.pool)
        .await?)
    }
}
