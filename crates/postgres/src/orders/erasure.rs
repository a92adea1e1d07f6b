//! Replaces a buyer's id by a pseudonym (docs/security.md, "Erasing a buyer"). Sums, stock and books do not change.

use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{LedgerError, Orders, audit_log};
use seckill_domain::ids::SaleId;

/// Groups of purchases per statement.
const GROUPS: i64 = 500;

/// A reason to erase the buyer later.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("sale {sale} {why}")]
pub struct Obstacle {
    pub sale: SaleId,
    pub why: String,
}

/// Where the id was: rows of each table that were changed.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErasureReport {
    /// The id that stands in place of the buyer's.
    pub pseudonym: String,
    pub orders: u64,
    pub purchase_groups: u64,
    pub sale_buyers: u64,
    pub lapsed_holds: u64,
    pub refunds: u64,
    pub audit_log: u64,
    /// The sales that are filled again in Redis, without the id.
    pub refilled_sales: Vec<i64>,
}

impl Orders {
    /// Erases a buyer: one transaction for each sale. After a death between two of them, a second call erases the rest, under another
    /// pseudonym. Changes nothing if a sale of the buyer still runs, or an order can still change by itself.
    pub async fn erase_buyer(
        &self,
        actor: &str,
        user: &str,
    ) -> Result<Result<ErasureReport, Vec<Obstacle>>, LedgerError> {
        let (sales, obstacles) = self.sales_of_buyer(user).await?;
        if !obstacles.is_empty() {
            return Ok(Err(obstacles));
        }
        let mut report = ErasureReport { pseudonym: format!("erased-{}", Uuid::new_v4()), ..Default::default() };
        for sale in sales {
            self.erase_from_sale(user, sale, &mut report).await?;
        }
        self.erase_from_log(actor, user, &mut report).await?;
        Ok(Ok(report))
    }

    async fn sales_of_buyer(&self, user: &str) -> Result<(Vec<SaleId>, Vec<Obstacle>), LedgerError> {
        let rows = sqlx::query!(
            r#"SELECT s.id, s.status <> 'closed' AND s.ends_at > now() AS "runs!", s.ends_at,
                      EXISTS (SELECT FROM orders o WHERE o.user_id = $1 AND o.sale_id = s.id
                              AND o.status || '' IN ('pending_payment', 'refunding')) AS "unsettled!",
                      EXISTS (SELECT FROM purchase_groups g WHERE num_nulls(g.settled_at) = 1 AND g.sale_id = s.id
                              AND g.user_ids @> ARRAY[$1] COLLATE "C") AS "accepted!"
               FROM sales s WHERE s.id IN (
                 SELECT sale_id FROM orders WHERE user_id = $1
                 UNION SELECT sale_id FROM purchase_groups
                       WHERE num_nulls(settled_at) = 1 AND user_ids @> ARRAY[$1] COLLATE "C")
               ORDER BY s.id"#,
            user
        );
        let rows = rows.fetch_all(&self.0.pool).await?;
        let obstacle = |sale, why| Obstacle { sale: SaleId::from_db(sale), why };
        let obstacles = rows.iter().filter_map(|row| {
            if row.runs {
                Some(obstacle(
                    row.id,
                    format!("runs until {}, and knows its buyers by their ids", row.ends_at.to_rfc3339()),
                ))
            } else {
                let open = "has an order of this buyer that is accepted, pending_payment or refunding";
                (row.unsettled || row.accepted).then(|| obstacle(row.id, open.to_owned()))
            }
        });
        Ok((rows.iter().map(|row| SaleId::from_db(row.id)).collect(), obstacles.collect()))
    }

    /// All rows of a sale change together: the auditor compares groups with orders.
    async fn erase_from_sale(&self, user: &str, sale: SaleId, report: &mut ErasureReport) -> Result<(), LedgerError> {
        let (mut tx, pseudonym, id) = (self.0.begin().await?, report.pseudonym.as_str(), sale.get());
        let groups = erase_from_groups(&mut tx, user, pseudonym, sale).await?;
        let orders =
            sqlx::query!("UPDATE orders SET user_id = $2 WHERE user_id = $1 AND sale_id = $3", user, pseudonym, id);
        let orders = orders.execute(&mut *tx).await?.rows_affected();
        let refunds = sqlx::query!(
            "UPDATE refunds SET asked_by = 'buyer ' || $2, reason = ''
             WHERE asked_by = 'buyer ' || $1 AND payment_id IN (
               SELECT p.id FROM orders o JOIN payments p ON p.order_id = o.id WHERE o.user_id = $2 AND o.sale_id = $3)",
            user,
            pseudonym,
            id
        );
        let refunds = refunds.execute(&mut *tx).await?.rows_affected();
        let buyers = sqlx::query!(
            "UPDATE sale_buyers SET user_id = $2 WHERE user_id = $1 AND sale_id = $3",
            user,
            pseudonym,
            id
        );
        let buyers = buyers.execute(&mut *tx).await?.rows_affected();
        let holds = sqlx::query!(
            "UPDATE lapsed_holds SET user_id = $2, address = NULL WHERE user_id = $1 AND sale_id = $3",
            user,
            pseudonym,
            id
        );
        let holds = holds.execute(&mut *tx).await?.rows_affected();
        // Redis has the id in hashes and lists of the sale. A refill replaces them all.
        let refilled = sqlx::query!("UPDATE sale_epochs SET run_id = NULL WHERE sale_id = $1 AND in_redis", id);
        let refilled = refilled.execute(&mut *tx).await?.rows_affected() > 0;
        tx.commit().await?;
        report.purchase_groups += groups;
        report.orders += orders;
        report.refunds += refunds;
        report.sale_buyers += buyers;
        report.lapsed_holds += holds;
        report.refilled_sales.extend(refilled.then_some(id));
        Ok(())
    }

    /// Buyers stand in the log only as filters of exports.
    async fn erase_from_log(&self, actor: &str, user: &str, report: &mut ErasureReport) -> Result<(), LedgerError> {
        let (mut tx, pseudonym) = (self.0.begin().await?, report.pseudonym.as_str());
        let exported = sqlx::query!(
            "UPDATE audit_log SET details = jsonb_set(details, '{user}', to_jsonb($2::text))
             WHERE action = 'export orders' AND details ->> 'user' = $1",
            user,
            pseudonym
        );
        report.audit_log = exported.execute(&mut *tx).await?.rows_affected();
        audit_log::append(&mut tx, actor, "erase buyer", &format!("buyer {pseudonym}"), json!(report)).await?;
        tx.commit().await?;
        Ok(())
    }
}

/// Also from groups that were split. Returns the number of changed groups.
async fn erase_from_groups(
    tx: &mut PgConnection,
    user: &str,
    pseudonym: &str,
    sale: SaleId,
) -> Result<u64, LedgerError> {
    let (mut from, mut changed) = (0, 0);
    loop {
        let page = sqlx::query!(
            r#"WITH page AS (SELECT id, place FROM purchase_groups WHERE sale_id = $3 AND place > $4 ORDER BY place LIMIT $5),
                    changed AS (
                      UPDATE purchase_groups g
                      SET user_ids = array_replace(user_ids, $1, $2),
                          addresses = ARRAY(SELECT CASE m.user_id WHEN $1 THEN NULL ELSE m.address END
                                            FROM unnest(g.user_ids, g.addresses) WITH ORDINALITY AS m (user_id, address, n)
                                            ORDER BY m.n)
                      FROM page WHERE g.id = page.id AND $1 = ANY (g.user_ids)
                      RETURNING g.id)
               SELECT (SELECT max(place) FROM page) AS next, (SELECT count(*) FROM changed) AS "changed!""#,
            user,
            pseudonym,
            sale.get(),
            from,
            GROUPS
        );
        let page = page.fetch_one(&mut *tx).await?;
        changed += page.changed.unsigned_abs();
        let Some(next) = page.next else { return Ok(changed) };
        from = next;
    }
}
