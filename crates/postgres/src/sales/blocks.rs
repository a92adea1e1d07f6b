//! Who may not buy in a sale, and what a buyer or a network address has done in it.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::sales::terms;
use crate::{LedgerError, Sales, audit_log};
use seckill_domain::ids::{OrderId, SaleId};
use seckill_domain::sale_blocks::{BLOCKS_MAX, Shopper};

/// A buyer or a network address that may not buy in a sale.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Block {
    /// `buyer` or `address`.
    pub kind: String,
    pub name: String,
    pub note: String,
    pub blocked_by: String,
    #[serde(rename = "blocked_at_ms", with = "chrono::serde::ts_milliseconds")]
    #[schema(value_type = i64)]
    pub blocked_at: DateTime<Utc>,
}

/// A purchase, and what became of it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ShopperOrder {
    #[schema(value_type = OrderId)]
    pub order_id: uuid::Uuid,
    pub user: String,
    /// Null where it is not known any more.
    pub address: Option<String>,
    pub quantity: i32,
    pub status: String,
    pub reason: Option<String>,
    #[serde(rename = "created_at_ms", with = "chrono::serde::ts_milliseconds")]
    #[schema(value_type = i64)]
    pub created_at: DateTime<Utc>,
    /// When the hold lapsed, because it was not paid in time.
    #[serde(rename = "lapsed_at_ms", with = "chrono::serde::ts_milliseconds_option")]
    #[schema(value_type = Option<i64>)]
    pub lapsed_at: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockChange {
    /// With the first catalogue version that has the change.
    Done(i64),
    /// There is no such sale, or no such block.
    Unknown,
    /// The sale has as many blocks as it may have.
    Full,
}

impl Sales {
    /// Blocks a buyer or an address in a sale. A second block replaces the note of the first one.
    pub async fn block(
        &self,
        sale: SaleId,
        shopper: &Shopper,
        note: &str,
        actor: &str,
    ) -> Result<BlockChange, LedgerError> {
        let mut tx = self.0.begin().await?;
        let (kind, name) = (shopper.kind(), shopper.name());
        let known = sqlx::query!("SELECT FROM sales WHERE id = $1 FOR KEY SHARE", sale.get());
        if known.fetch_optional(&mut *tx).await?.is_none() {
            return Ok(BlockChange::Unknown);
        }
        let made = sqlx::query!(
            "INSERT INTO sale_blocks (sale_id, kind, name, note, blocked_by)
             SELECT $1, $2, $3, $4, $5
             WHERE (SELECT count(*) FROM sale_blocks WHERE sale_id = $1 AND NOT (kind = $2 AND name = $3)) < $6
             ON CONFLICT (sale_id, kind, name) DO UPDATE
             SET note = excluded.note, blocked_by = excluded.blocked_by, blocked_at = now()",
            sale.get(),
            kind,
            name,
            note,
            actor,
            BLOCKS_MAX
        );
        if made.execute(&mut *tx).await?.rows_affected() == 0 {
            return Ok(BlockChange::Full);
        }
        let details = match shopper {
            // The erasure of a buyer looks for this field.
            Shopper::Buyer(user) => json!({ "user": user.as_str(), "note": note }),
            Shopper::Address(_) => json!({ "address": name, "note": note }),
        };
        audit_log::append(&mut tx, actor, &format!("{kind} blocked"), &format!("sale {sale}"), details).await?;
        let version = terms::version(&mut tx).await?;
        tx.commit().await?;
        Ok(BlockChange::Done(version))
    }

    pub async fn unblock(&self, sale: SaleId, shopper: &Shopper, actor: &str) -> Result<BlockChange, LedgerError> {
        let mut tx = self.0.begin().await?;
        let (kind, name) = (shopper.kind(), shopper.name());
        let ended = sqlx::query!(
            "DELETE FROM sale_blocks WHERE sale_id = $1 AND kind = $2 AND name = $3",
            sale.get(),
            kind,
            name
        );
        if ended.execute(&mut *tx).await?.rows_affected() == 0 {
            return Ok(BlockChange::Unknown);
        }
        let field = if kind == "buyer" { "user" } else { "address" };
        let details = json!({ field: name });
        audit_log::append(&mut tx, actor, &format!("{kind} unblocked"), &format!("sale {sale}"), details).await?;
        let version = terms::version(&mut tx).await?;
        tx.commit().await?;
        Ok(BlockChange::Done(version))
    }

    /// The blocks of a sale, the newest first.
    pub async fn blocks(&self, sale: SaleId) -> Result<Vec<Block>, LedgerError> {
        let blocks = sqlx::query_as!(
            Block,
            "SELECT kind, name, note, blocked_by, blocked_at FROM sale_blocks WHERE sale_id = $1
             ORDER BY blocked_at DESC, kind, name",
            sale.get()
        );
        Ok(blocks.fetch_all(&self.0.pool).await?)
    }

    /// What a buyer (`orders_of_user`) or an address has bought in a sale, newest first. For an address, all groups of the sale are read,
    /// within 3 s; they are cleared some time after the sale.
    pub async fn purchases_of(
        &self,
        sale: SaleId,
        shopper: &Shopper,
        limit: i64,
    ) -> Result<Vec<ShopperOrder>, LedgerError> {
        let mut tx = self.0.begin_reading().await?;
        let name = shopper.name();
        let found = match shopper {
            Shopper::Buyer(_) => {
                sqlx::query_as!(
                    ShopperOrder,
                    r#"SELECT o.id AS order_id, o.user_id AS user, o.quantity, o.status, o.reason, o.created_at,
                              (SELECT g.addresses[array_position(g.order_ids, o.id)] FROM purchase_groups g WHERE g.id = o.group_id) AS address,
                              (SELECT lapsed_at FROM lapsed_holds l WHERE l.order_id = o.id) AS lapsed_at
                       FROM orders o WHERE o.user_id = $1 AND o.sale_id = $2 ORDER BY o.created_at DESC LIMIT $3"#,
                    name,
                    sale.get(),
                    limit
                )
                .fetch_all(&mut *tx)
                .await?
            }
            Shopper::Address(_) => {
                sqlx::query_as!(
                    ShopperOrder,
                    r#"SELECT m.order_id AS "order_id!", m.user_id AS "user!", m.quantity AS "quantity!", m.address,
                              coalesce(o.status, 'accepted') AS "status!", o.reason AS "reason?", g.created_at,
                              (SELECT lapsed_at FROM lapsed_holds l WHERE l.order_id = m.order_id) AS lapsed_at
                       FROM purchase_groups g
                       CROSS JOIN LATERAL unnest(g.order_ids, g.user_ids, g.quantities, g.addresses)
                                          AS m (order_id, user_id, quantity, address)
                       LEFT JOIN orders o ON o.id = m.order_id
                       WHERE g.sale_id = $1 AND NOT g.was_split AND m.address = $2
                       ORDER BY g.place DESC LIMIT $3"#,
                    sale.get(),
                    name,
                    limit
                )
                .fetch_all(&mut *tx)
                .await?
            }
        };
        Ok(found)
    }
}
