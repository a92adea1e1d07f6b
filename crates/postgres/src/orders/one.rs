//! Settles a group of one (protocol, rule 7). Its purchase becomes an order or a rejected order, unless the order exists already.

use sqlx::PgConnection;

use crate::orders::groups::{Traces, claim, close, count_buyers, make_orders, take_units, traces_of, write_dedup_rows};
use crate::{LedgerError, Orders};
use seckill_domain::ids::GroupId;
use seckill_domain::order::Rejection;
use seckill_runtime::die_at;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettledOne {
    Accepted,
    Rejected(Rejection),
    /// The purchase was settled before, here or in another group.
    Known,
}

impl Orders {
    /// Settles a group of one in one transaction. The group is closed in every case, except after an error. `orders_pkey` is the error if
    /// another group made the order meanwhile. The next try finds the order.
    pub async fn settle_one(&self, group: GroupId, traces: &Traces) -> Result<SettledOne, LedgerError> {
        match self.try_one(group, traces).await {
            Err(LedgerError::Refused(constraint)) if constraint == "orders_pkey" => self.try_one(group, traces).await,
            settled => settled,
        }
    }

    async fn try_one(&self, group: GroupId, traces: &Traces) -> Result<SettledOne, LedgerError> {
        let mut tx = self.0.begin().await?;
        let claimed = claim(&mut tx, &[group]).await?;
        let [row] = &claimed[..] else { return Ok(SettledOne::Known) };
        let id = &[row.group];
        let made = sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM orders WHERE id = $1) AS "made!""#, group.0);
        let settled = if made.fetch_one(&mut *tx).await? {
            SettledOne::Known
        } else if !write_dedup_rows(&mut tx, id).await? {
            // The message was processed, but there is no order. People must look at it.
            return Err(LedgerError::Unreadable("processed_messages.message_id"));
        } else if !count_buyers(&mut tx, id).await? {
            SettledOne::Rejected(Rejection::OverLimit)
        } else if !row.unlimited && !take_units(&mut tx, row.sale, row.units.into()).await? {
            uncount_buyer(&mut tx, group).await?;
            // Redis has sold more than the stock, so its stock is wrong: request a refill.
            sqlx::query!("UPDATE sale_epochs SET run_id = NULL WHERE sale_id = $1", row.sale).execute(&mut *tx).await?;
            SettledOne::Rejected(Rejection::OutOfStock)
        } else {
            SettledOne::Accepted
        };
        let traces = traces_of(&claimed, traces);
        match settled {
            SettledOne::Accepted => make_orders(&mut tx, id, &traces, None).await?,
            SettledOne::Rejected(why) => {
                make_orders(&mut tx, id, &traces, Some(why)).await?;
                release(&mut tx, group, why != Rejection::OutOfStock).await?;
            }
            SettledOne::Known => {}
        }
        close(&mut tx, &[row.id], id).await?;
        die_at!("fulfil.before_commit");
        tx.commit().await?;
        die_at!("fulfil.after_commit");
        Ok(settled)
    }
}

async fn uncount_buyer(tx: &mut PgConnection, group: GroupId) -> Result<(), LedgerError> {
    sqlx::query!(
        "UPDATE sale_buyers b SET units = b.units - g.units FROM purchase_groups g
         WHERE g.id = $1 AND b.sale_id = g.sale_id AND b.user_id = g.user_ids[1]",
        group.0
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Adds a row for the release of the hold. Units above the stock do not return to Redis: they never existed.
async fn release(tx: &mut PgConnection, group: GroupId, returns_units: bool) -> Result<(), LedgerError> {
    sqlx::query!(
        "INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, returns_units, members)
         SELECT 'hold_release', order_ids[1], sale_id, units, shard, $2, order_ids FROM purchase_groups WHERE id = $1",
        group.0,
        returns_units
    )
    .execute(tx)
    .await?;
    Ok(())
}
