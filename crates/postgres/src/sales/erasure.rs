//! Replaces a buyer's id by a pseudonym (docs/security.md, "Erasing a buyer"). Sums, stock and books do not change.

use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{LedgerError, Sales, audit_log};
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
    /// Blocks of the buyer, which are removed.
    pub sale_blocks: u64,
    /// The sales that are filled again in Redis, without the id.
    pub refilled_sales: Vec<i64>,
}

impl ErasureReport {
    fn add(&mut self, of_sale: Self) {
        self.orders += of_sale.orders;
        self.purchase_groups += of_sale.purchase_groups;
        self.sale_buyers += of_sale.sale_buyers;
        self.lapsed_holds += of_sale.lapsed_holds;
        self.refunds += of_sale.refunds;
        self.refilled_sales.extend(of_sale.refilled_sales);
    }
}

impl Sales {
    /// Erases a buyer: one transaction for each sale. After a death between two of them, a second call erases the rest, under another
    /// pseudonym. Stops at a sale that still runs, or in which an order of the buyer can still change by itself; all are looked at first.
    pub async fn erase_buyer(
        &self,
        actor: &str,
        user: &str,
    ) -> Result<Result<ErasureReport, Vec<Obstacle>>, LedgerError> {
        let sales = sales_of_buyer(&mut *self.0.pool.acquire().await?, user, None).await?;
        let obstacles: Vec<Obstacle> = sales.iter().filter_map(|(_, obstacle)| obstacle.clone()).collect();
        if !obstacles.is_empty() {
            return Ok(Err(obstacles));
        }
        let mut report = ErasureReport { pseudonym: format!("erased-{}", Uuid::new_v4()), ..Default::default() };
        for (sale, _) in sales {
            if let Some(obstacle) = self.erase_from_sale(actor, user, sale, &mut report).await? {
                return Ok(Err(vec![obstacle]));
            }
        }
        self.erase_from_log(actor, user, &mut report).await?;
        Ok(Ok(report))
    }

    /// All rows of a sale change together: the auditor compares groups with orders. The new epoch stops purchases that are on their way,
    /// and a refill that has read the id.
    async fn erase_from_sale(
        &self,
        actor: &str,
        user: &str,
        sale: SaleId,
        whole: &mut ErasureReport,
    ) -> Result<Option<Obstacle>, LedgerError> {
        // Read before the transaction, which then is short, however many groups the sale has.
        let groups = self.groups_with(user, sale).await?;
        let (mut tx, id) = (self.0.begin().await?, sale.get());
        // Not by `lock_epoch`, which may lock out the commits of all sales: nobody commits purchases of a sale that is over.
        sqlx::query!("SELECT FROM sale_epochs WHERE sale_id = $1 FOR UPDATE", id).execute(&mut *tx).await?;
        if let Some((_, Some(obstacle))) = sales_of_buyer(&mut tx, user, Some(sale)).await?.pop() {
            return Ok(Some(obstacle));
        }
        let mut report = ErasureReport { pseudonym: whole.pseudonym.clone(), ..Default::default() };
        let pseudonym = report.pseudonym.as_str();
        // The orders' own groups, too: one that was committed late may have been read by nobody.
        let groups = sqlx::query!(
            "UPDATE purchase_groups g
             SET user_ids = array_replace(user_ids, $1, $2),
                 addresses = ARRAY(SELECT CASE m.user_id WHEN $1 THEN NULL ELSE m.address END
                                   FROM unnest(g.user_ids, g.addresses) WITH ORDINALITY AS m (user_id, address, n) ORDER BY m.n)
             WHERE g.id = ANY ($4::uuid[] || ARRAY(SELECT group_id FROM orders WHERE user_id = $1 AND sale_id = $3))
               AND $1 = ANY (g.user_ids)",
            user,
            pseudonym,
            id,
            &groups
        );
        report.purchase_groups = groups.execute(&mut *tx).await?.rows_affected();
        let orders =
            sqlx::query!("UPDATE orders SET user_id = $2 WHERE user_id = $1 AND sale_id = $3", user, pseudonym, id);
        report.orders = orders.execute(&mut *tx).await?.rows_affected();
        let refunds = sqlx::query!(
            "UPDATE refunds SET asked_by = 'buyer ' || $2, reason = ''
             WHERE asked_by = 'buyer ' || $1 AND payment_id IN (
               SELECT p.id FROM orders o JOIN payments p ON p.order_id = o.id WHERE o.user_id = $2 AND o.sale_id = $3)",
            user,
            pseudonym,
            id
        );
        report.refunds = refunds.execute(&mut *tx).await?.rows_affected();
        let buyers = sqlx::query!(
            "UPDATE sale_buyers SET user_id = $2 WHERE user_id = $1 AND sale_id = $3",
            user,
            pseudonym,
            id
        );
        report.sale_buyers = buyers.execute(&mut *tx).await?.rows_affected();
        let holds = sqlx::query!(
            "UPDATE lapsed_holds SET user_id = $2, address = NULL WHERE user_id = $1 AND sale_id = $3",
            user,
            pseudonym,
            id
        );
        report.lapsed_holds = holds.execute(&mut *tx).await?.rows_affected();
        // Redis has the id in hashes and lists of the sale. A refill replaces them all.
        let refilled =
            sqlx::query!("UPDATE sale_epochs SET epoch = epoch + 1, run_id = NULL WHERE sale_id = $1 AND in_redis", id);
        report.refilled_sales.extend((refilled.execute(&mut *tx).await?.rows_affected() > 0).then_some(id));
        audit_log::append(
            &mut tx,
            actor,
            "erase buyer",
            &format!("buyer {pseudonym}"),
            json!({ "sale": id, "rows": report }),
        )
        .await?;
        tx.commit().await?;
        whole.add(report);
        Ok(None)
    }

    /// The groups of a sale that have the buyer, also those that were split.
    async fn groups_with(&self, user: &str, sale: SaleId) -> Result<Vec<Uuid>, LedgerError> {
        let (mut from, mut found) = (0, Vec::new());
        loop {
            let page = sqlx::query!(
                r#"SELECT place, id, $1 = ANY (user_ids) AS "has_buyer!" FROM purchase_groups
                   WHERE sale_id = $2 AND place > $3 ORDER BY place LIMIT $4"#,
                user,
                sale.get(),
                from,
                GROUPS
            );
            let page = page.fetch_all(&self.0.pool).await?;
            let Some(last) = page.last() else { return Ok(found) };
            from = last.place;
            found.extend(page.iter().filter(|group| group.has_buyer).map(|group| group.id));
        }
    }

    /// Buyers stand in the log as filters of exports, and where they were blocked.
    async fn erase_from_log(&self, actor: &str, user: &str, report: &mut ErasureReport) -> Result<(), LedgerError> {
        let (mut tx, pseudonym) = (self.0.begin().await?, report.pseudonym.as_str());
        let exported = sqlx::query!(
            "UPDATE audit_log SET details = jsonb_set(details, '{user}', to_jsonb($2::text))
             WHERE action IN ('export orders', 'buyer blocked', 'buyer unblocked') AND details ->> 'user' = $1",
            user,
            pseudonym
        );
        report.audit_log = exported.execute(&mut *tx).await?.rows_affected();
        let blocks = sqlx::query!("DELETE FROM sale_blocks WHERE name = $1 AND kind = 'buyer'", user);
        report.sale_blocks = blocks.execute(&mut *tx).await?.rows_affected();
        audit_log::append(&mut tx, actor, "erase buyer", &format!("buyer {pseudonym}"), json!(report)).await?;
        tx.commit().await?;
        Ok(())
    }
}

/// The sales of a buyer, or the given one if the buyer has bought in it; each with what prevents an erasure from it.
async fn sales_of_buyer(
    executor: &mut PgConnection,
    user: &str,
    only: Option<SaleId>,
) -> Result<Vec<(SaleId, Option<Obstacle>)>, LedgerError> {
    let rows = sqlx::query!(
        r#"SELECT s.id, s.status <> 'closed' AND s.ends_at > now() AS "runs!", s.ends_at,
                  EXISTS (SELECT FROM orders o WHERE o.user_id = $1 AND o.sale_id = s.id
                          AND o.status || '' IN ('pending_payment', 'refunding'))
                  OR EXISTS (SELECT FROM purchase_groups g WHERE num_nulls(g.settled_at) = 1 AND g.sale_id = s.id
                             AND g.user_ids @> ARRAY[$1] COLLATE "C") AS "unsettled!"
           FROM sales s
           WHERE ($2::bigint IS NULL OR s.id = $2) AND s.id IN (
             SELECT sale_id FROM orders WHERE user_id = $1
             UNION SELECT sale_id FROM purchase_groups WHERE num_nulls(settled_at) = 1 AND user_ids @> ARRAY[$1] COLLATE "C")
           ORDER BY s.id"#,
        user,
        only.map(SaleId::get)
    );
    let rows = rows.fetch_all(executor).await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let sale = SaleId::from_db(row.id);
            let why = if row.runs {
                Some(format!("runs until {}, and knows its buyers by their ids", row.ends_at.to_rfc3339()))
            } else {
                let open = "has an order of this buyer that is accepted, pending_payment or refunding";
                row.unsettled.then(|| open.to_owned())
            };
            (sale, why.map(|why| Obstacle { sale, why }))
        })
        .collect())
}
