//! Creates, changes and reads sales and products.

use std::cmp::Reverse;

use serde_json::json;
use sqlx::PgConnection;
use sqlx::types::Json;
use uuid::Uuid;

use super::drafts;
use crate::{LedgerError, Sales, audit_log};
use seckill_domain::ids::{DocId, SaleId, Units};
use seckill_domain::picture::Picture;
use seckill_domain::sale::{Document, NewSale, PlannedWave, Product, Sale, SalePhase, SaleStatus, Wave};
use seckill_domain::sale_blocks::SaleBlocks;
use seckill_domain::shards::ShardCount;
use seckill_domain::stock::Stock;

#[derive(Debug, Clone)]
pub struct SaleFigures {
    pub sale: Sale,
    pub total_stock: i64,
    pub stock: i64,
}

#[derive(Debug, Clone, Default)]
pub struct SaleSearch {
    pub only: Option<SaleId>,
    /// Only sales after this one in the list: older ones.
    pub before: Option<SaleId>,
    pub phase: Option<SalePhase>,
    /// A part of the product's name, in any case.
    pub text: Option<String>,
    pub limit: i64,
}

impl SaleSearch {
    pub fn newest(limit: i64) -> Self {
        Self { limit, ..Self::default() }
    }

    /// The next sales of a list of all of them.
    pub fn after(last: Option<&SaleFigures>, limit: i64) -> Self {
        Self { before: last.map(|last| last.sale.id), ..Self::newest(limit) }
    }

    pub fn one(sale: SaleId) -> Self {
        Self { only: Some(sale), ..Self::newest(1) }
    }
}

pub(super) fn per_user(units: i32) -> Result<Units, LedgerError> {
    let units = u64::try_from(units).ok().and_then(|n| Units::parse(n).ok());
    units.ok_or(LedgerError::Unreadable("sales.per_user"))
}

pub(super) fn shard_count(shards: i16) -> Result<ShardCount, LedgerError> {
    let shards = u64::try_from(shards).ok().and_then(|n| ShardCount::parse(n).ok());
    shards.ok_or(LedgerError::Unreadable("sales.shards"))
}

pub(super) fn stock(units: i64) -> Result<Stock, LedgerError> {
    Stock::parse(units).map_err(|_| LedgerError::Unreadable("sales.stock"))
}

pub(super) fn product(id: i64, name: String, description: String, picture: Option<Json<Picture>>) -> Product {
    Product { id, name, description, picture: picture.map(|Json(picture)| picture) }
}

/// The catalogue version of this transaction's changes. Its row stays locked until the commit.
pub(super) async fn version(tx: &mut PgConnection) -> Result<i64, LedgerError> {
    Ok(sqlx::query_scalar!("SELECT version FROM catalog_version").fetch_one(tx).await?)
}

/// The product with this name, made if it is missing.
pub(super) async fn product_named(tx: &mut PgConnection, name: &str) -> Result<i64, LedgerError> {
    // DO UPDATE, because DO NOTHING returns no row for an existing product.
    let product = sqlx::query_scalar!(
        "INSERT INTO products (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id",
        name
    );
    Ok(product.fetch_one(tx).await?)
}

pub(super) async fn plan_waves(tx: &mut PgConnection, sale: i64, waves: &[Wave]) -> Result<(), LedgerError> {
    for wave in waves {
        sqlx::query!(
            "INSERT INTO sale_waves (sale_id, units, due_at, planned)
             SELECT id, $2, starts_at + $3::bigint * interval '1 ms', true FROM sales WHERE id = $1",
            sale,
            wave.units.cast_signed(),
            wave.after_ms
        )
        .execute(&mut *tx)
        .await?;
    }
    Ok(())
}

impl Sales {
    /// Creates a sale, its product if missing, and its epoch row, which requests a refill. `keys`: the purchase key and the waiting key.
    /// The sale's times count from `from_ms`, or else from now. Returns the sale, and the first catalogue version that has it.
    pub async fn create_sale(
        &self,
        new: &NewSale,
        keys: [String; 2],
        from_ms: Option<i64>,
        actor: &str,
    ) -> Result<(SaleId, i64), LedgerError> {
        let mut tx = self.0.begin().await?;
        let created = Self::insert_sale(&mut tx, new, keys, from_ms, actor).await?;
        tx.commit().await?;
        Ok(created)
    }

    /// Creates the sale that a draft has become, and removes the draft. `None` if the draft is gone: it was published, or removed.
    pub async fn create_sale_of_draft(
        &self,
        draft: Uuid,
        new: &NewSale,
        keys: [String; 2],
        from_ms: Option<i64>,
        actor: &str,
    ) -> Result<Option<(SaleId, i64)>, LedgerError> {
        let mut tx = self.0.begin().await?;
        if !drafts::delete(&mut tx, draft).await? {
            return Ok(None);
        }
        let created = Self::insert_sale(&mut tx, new, keys, from_ms, actor).await?;
        tx.commit().await?;
        Ok(Some(created))
    }

    async fn insert_sale(
        tx: &mut PgConnection,
        new: &NewSale,
        keys: [String; 2],
        from_ms: Option<i64>,
        actor: &str,
    ) -> Result<(SaleId, i64), LedgerError> {
        let product = product_named(tx, &new.product).await?;
        let id = sqlx::query_scalar!(
            "INSERT INTO sales (product_id, price_cents, currency, total_stock, stock, per_user, min_level, starts_at, ends_at,
                                pay_within_ms, purchase_key, waiting_key, refund_returns_stock, captcha, shards, show_stock)
             VALUES ($1, $2, $16, $3::bigint, $3::bigint - $11::bigint, $4, $5,
                     coalesce('epoch'::timestamptz + $14::bigint * interval '1 ms', now()) + $6::bigint * interval '1 ms',
                     coalesce('epoch'::timestamptz + $14::bigint * interval '1 ms', now()) + $7::bigint * interval '1 ms',
                     $8, $9, $10, $12, $13, $15, $17)
             RETURNING id",
            product,
            new.price_cents,
            new.stock.as_i64(),
            new.per_user.get().cast_signed(),
            i32::try_from(new.min_level).map_err(|_| LedgerError::Unreadable("min_level"))?,
            new.starts_in_ms,
            new.ends_in_ms,
            new.pay_within_ms,
            keys[0],
            keys[1],
            new.held_back().cast_signed(),
            new.refund_returns_stock,
            new.captcha.as_str(),
            from_ms,
            i16::from(new.shards.get()),
            new.currency.code(),
            new.show_stock
        )
        .fetch_one(&mut *tx)
        .await?;
        plan_waves(&mut *tx, id, &new.waves).await?;
        sqlx::query!("INSERT INTO sale_epochs (sale_id) VALUES ($1)", id).execute(&mut *tx).await?;
        let details = json!({
            "product": new.product, "price_cents": new.price_cents, "currency": new.currency, "stock": new.stock.as_i64(), "waves": new.waves.len(),
            "shards": new.shards.get(),
        });
        audit_log::append(&mut *tx, actor, "sale planned", &format!("sale {id}"), details).await?;
        let version = version(tx).await?;
        Ok((SaleId::from_db(id), version))
    }

    /// Sets a sale's status. Returns the catalogue version of the change; `None` if the sale does not exist or is closed, which is final.
    pub async fn set_sale_status(
        &self,
        sale: SaleId,
        status: SaleStatus,
        actor: &str,
    ) -> Result<Option<i64>, LedgerError> {
        let mut tx = self.0.begin().await?;
        let changed = sqlx::query!(
            "UPDATE sales SET status = $2 WHERE id = $1 AND (status <> 'closed' OR $2 = 'closed')",
            sale.get(),
            status.as_str()
        )
        .execute(&mut *tx)
        .await?;
        if changed.rows_affected() == 0 {
            return Ok(None);
        }
        audit_log::append(&mut tx, actor, &format!("sale {status}"), &format!("sale {sale}"), json!({})).await?;
        let version = version(&mut tx).await?;
        tx.commit().await?;
        Ok(Some(version))
    }

    pub async fn is_bought_in(&self, sale: SaleId) -> Result<bool, LedgerError> {
        is_bought_in(&mut *self.0.pool.acquire().await?, sale).await
    }

    /// Removes a sale without purchases. Call `is_bought_in` first, because commits wait while the epoch's row is locked. Returns the
    /// catalogue version of the change; `None` if the sale does not exist or has orders.
    pub async fn remove_sale(&self, sale: SaleId, actor: &str) -> Result<Option<i64>, LedgerError> {
        let mut tx = self.0.begin().await?;
        sqlx::query("SET LOCAL statement_timeout = '2s'").execute(&mut *tx).await?;
        // The epoch row first: purchases lock it shared while they insert their rows.
        let epochs = sqlx::query!("DELETE FROM sale_epochs WHERE sale_id = $1", sale.get()).execute(&mut *tx).await?;
        if epochs.rows_affected() == 0 || is_bought_in(&mut tx, sale).await? {
            return Ok(None);
        }
        sqlx::query!(
            "WITH waves AS (DELETE FROM sale_waves WHERE sale_id = $1 RETURNING id)
             DELETE FROM outbox WHERE kind = 'wave_release' AND order_id IN (SELECT id FROM waves)",
            sale.get()
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!("DELETE FROM sales WHERE id = $1", sale.get()).execute(&mut *tx).await?;
        audit_log::append(&mut tx, actor, "sale removed", &format!("sale {sale}"), json!({})).await?;
        let version = version(&mut tx).await?;
        tx.commit().await?;
        Ok(Some(version))
    }

    pub async fn sale_ids(&self, search: &SaleSearch) -> Result<Vec<SaleId>, LedgerError> {
        let ids = ids_of(&mut *self.0.pool.acquire().await?, search).await?;
        Ok(ids.into_iter().map(SaleId::from_db).collect())
    }

    /// Sales with their stock, newest first.
    pub async fn sale_figures(&self, search: &SaleSearch) -> Result<Vec<SaleFigures>, LedgerError> {
        let mut tx = self.0.begin_snapshot(&self.0.pool).await?;
        let ids = ids_of(&mut tx, search).await?;
        let mut sales = figures_of(&mut tx, &ids).await?;
        sales.sort_unstable_by_key(|figures| Reverse(figures.sale.id));
        Ok(sales)
    }

    /// A document, and the catalogue version of the same snapshot.
    pub async fn document(&self, id: DocId) -> Result<(Option<Document>, i64), LedgerError> {
        let mut tx = self.0.begin_snapshot(&self.0.pool).await?;
        let as_of = version(&mut tx).await?;
        let document = match id {
            DocId::Sale(id) => load_sales(&mut tx, &[id]).await?.pop().map(Document::Sale),
            DocId::Product(id) => {
                let row = sqlx::query!(
                    r#"SELECT id, name, description,
                              (SELECT picture FROM product_pictures WHERE product_id = id) AS "picture?: Json<Picture>"
                       FROM products WHERE id = $1"#,
                    id
                );
                let row = row.fetch_optional(&mut *tx).await?;
                row.map(|row| Document::Product(product(row.id, row.name, row.description, row.picture)))
            }
        };
        Ok((document, as_of))
    }
}

/// The ids of sales, newest first, by their key. A search with few matches reads all sales: thousands at most.
async fn ids_of(connection: &mut PgConnection, search: &SaleSearch) -> Result<Vec<i64>, LedgerError> {
    let ids = sqlx::query_scalar!(
        "SELECT s.id FROM sales s JOIN products p ON p.id = s.product_id
             WHERE ($1::bigint IS NULL OR s.id = $1) AND ($2::bigint IS NULL OR s.id < $2)
               AND ($3::text IS NULL OR $3 = CASE WHEN status = 'closed' OR ends_at <= now() THEN 'ended'
                                                  WHEN status = 'paused' THEN 'paused'
                                                  WHEN starts_at > now() THEN 'scheduled' ELSE 'open' END)
               AND ($4::text IS NULL OR position(lower($4) IN lower(p.name)) > 0)
             ORDER BY s.id DESC LIMIT $5",
        search.only.map(SaleId::get),
        search.before.map(SaleId::get),
        search.phase.map(SalePhase::as_str),
        search.text,
        search.limit
    );
    Ok(ids.fetch_all(connection).await?)
}

/// The sales with these ids. Removed ones are missing.
pub(crate) async fn load_sales(tx: &mut PgConnection, ids: &[i64]) -> Result<Vec<Sale>, LedgerError> {
    Ok(figures_of(tx, ids).await?.into_iter().map(|figures| figures.sale).collect())
}

pub(crate) async fn figures_of(tx: &mut PgConnection, ids: &[i64]) -> Result<Vec<SaleFigures>, LedgerError> {
    let rows = sqlx::query!(
        r#"SELECT s.id, product_id, p.name AS product, p.description, price_cents, currency, total_stock, stock, per_user, min_level,
                  captcha, shards, starts_at, ends_at, pay_within_ms, status, purchase_key, waiting_key, terms_version, show_stock,
                  (SELECT picture FROM product_pictures i WHERE i.product_id = p.id) AS "picture?: Json<Picture>",
                  coalesce((SELECT waves FROM announced_waves w WHERE w.sale_id = s.id), '[]')
                      AS "waves!: Json<Vec<PlannedWave>>",
                  ARRAY(SELECT name FROM sale_blocks b WHERE b.sale_id = s.id AND b.kind = 'buyer') AS "buyers!",
                  ARRAY(SELECT name FROM sale_blocks b WHERE b.sale_id = s.id AND b.kind = 'address') AS "addresses!"
           FROM sales s JOIN products p ON p.id = s.product_id WHERE s.id = ANY($1)"#,
        ids
    )
    .fetch_all(tx)
    .await?;
    let figures = rows.into_iter().map(|row| {
        let sale = Sale {
            id: SaleId::from_db(row.id),
            product_id: row.product_id,
            product: row.product,
            description: row.description,
            picture: row.picture.map(|Json(picture)| picture),
            price_cents: row.price_cents,
            currency: row.currency.parse().map_err(|_| LedgerError::Unreadable("sales.currency"))?,
            per_user: per_user(row.per_user)?,
            min_level: row.min_level.into(),
            captcha: row.captcha.parse().map_err(|_| LedgerError::Unreadable("sales.captcha"))?,
            total_stock: stock(row.total_stock)?,
            show_stock: row.show_stock,
            shards: shard_count(row.shards)?,
            starts_at_ms: row.starts_at.timestamp_millis(),
            ends_at_ms: row.ends_at.timestamp_millis(),
            pay_within_ms: row.pay_within_ms,
            status: row.status.parse().map_err(|_| LedgerError::Unreadable("sales.status"))?,
            purchase_key: row.purchase_key,
            waiting_key: row.waiting_key,
            terms_version: row.terms_version,
            waves: row.waves.0,
            blocks: SaleBlocks {
                buyers: row.buyers.into_iter().collect(),
                addresses: row.addresses.into_iter().collect(),
            },
        };
        Ok(SaleFigures { sale, total_stock: row.total_stock, stock: row.stock })
    });
    figures.collect()
}

/// Whether a sale has orders, or purchases without an order. Both checks use an index.
pub(super) async fn is_bought_in(connection: &mut PgConnection, sale: SaleId) -> Result<bool, LedgerError> {
    let bought = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM orders WHERE sale_id = $1)
               OR EXISTS (SELECT FROM purchase_groups WHERE sale_id = $1 AND settled_at IS NULL) AS "bought!""#,
        sale.get()
    );
    Ok(bought.fetch_one(connection).await?)
}
