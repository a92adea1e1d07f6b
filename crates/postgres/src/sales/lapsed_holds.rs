//! Holds that were not paid in time, by buyer or address (protocol, rule 17).

use serde::Serialize;
use utoipa::ToSchema;

use crate::{LedgerError, Sales};
use seckill_domain::ids::SaleId;

/// Lapsed holds of one buyer, or of one network address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = LapsedLine)]
pub struct LapsedHolds {
    /// The buyer or the address; null where the address is not known.
    pub name: Option<String>,
    pub holds: i64,
    pub units: i64,
    /// How many buyers took them, from how many known addresses.
    pub buyers: i64,
    pub addresses: i64,
    pub last_lapsed_at_ms: i64,
}

impl Sales {
    /// The lapsed holds of a sale by address or by buyer, most holds first. Reads all of them, within 3 s.
    pub async fn lapsed_holds(
        &self,
        sale: SaleId,
        by_address: bool,
        limit: i64,
    ) -> Result<Vec<LapsedHolds>, LedgerError> {
        Ok(sqlx::query_as!(
            LapsedHolds,
            r#"SELECT CASE WHEN $2 THEN address ELSE user_id END AS name,
                      count(*) AS "holds!", sum(quantity)::bigint AS "units!",
                      count(DISTINCT user_id) AS "buyers!", count(DISTINCT address) AS "addresses!",
                      (extract(epoch FROM max(lapsed_at)) * 1000)::bigint AS "last_lapsed_at_ms!"
               FROM lapsed_holds WHERE sale_id = $1
               GROUP BY 1 ORDER BY count(*) DESC, max(lapsed_at) DESC, 1 LIMIT $3"#,
            sale.get(),
            by_address,
            limit
        )
        .fetch_all(&mut *self.0.begin_reading().await?)
        .await?)
    }
}
