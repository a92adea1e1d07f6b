//! Products and their pictures.

use bytes::Bytes;
use serde_json::json;
use sqlx::types::Json;

use crate::sales::terms::{self, load_sales, product};
use crate::{LedgerError, Sales, audit_log};
use seckill_domain::ids::SaleId;
use seckill_domain::picture::{Picture, PictureFile, Size};
use seckill_domain::sale::{Product, ProductChange, ProductEdit, Sale};

pub struct NewPicture {
    pub hash: String,
    pub small: (Size, Vec<u8>),
    pub large: (Size, Vec<u8>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EditedProduct {
    /// With the first catalogue version that has the change.
    Done {
        id: i64,
        version: i64,
    },
    Unknown,
    /// The new name is taken, there is no picture, or a sale has the product. Nothing was changed.
    Refused,
}

/// How long an unused picture is kept, for pages that are still open.
const UNUSED_FOR: &str = "1 day";

impl Sales {
    /// Creates or changes a product, with its picture if given. Returns its id, and the first catalogue version with the change; `None` if
    /// the change has an alternative text and the product has no picture.
    pub async fn set_product(
        &self,
        change: &ProductChange,
        picture: Option<&NewPicture>,
        actor: &str,
    ) -> Result<Option<(i64, i64)>, LedgerError> {
        let mut tx = self.0.begin().await?;
        if let Some(NewPicture { hash, small, large }) = picture {
            // DO UPDATE also locks the row, so that a picture that is about to be used is not cleared.
            sqlx::query!(
                "INSERT INTO pictures (hash, small_width, small_height, small, large_width, large_height, large)
                 VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (hash) DO UPDATE SET unused_since = NULL",
                hash,
                small.0.width.cast_signed(),
                small.0.height.cast_signed(),
                &small.1[..],
                large.0.width.cast_signed(),
                large.0.height.cast_signed(),
                &large.1[..]
            )
            .execute(&mut *tx)
            .await?;
        }
        // Two statements, because a table constraint would check the proposed row, not the existing one.
        sqlx::query!(
            "INSERT INTO products (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = excluded.name",
            change.name
        )
        .execute(&mut *tx)
        .await?;
        let changed = sqlx::query_scalar!(
            "UPDATE products SET description = coalesce($2, description), picture = coalesce($3, picture),
                                 picture_alt = coalesce($4, picture_alt)
             WHERE name = $1 RETURNING id",
            change.name,
            change.description,
            change.picture,
            change.alt
        )
        .fetch_one(&mut *tx)
        .await;
        let id = match changed.map_err(LedgerError::from) {
            Ok(id) => id,
            Err(LedgerError::Refused(constraint)) if constraint == "products_picture_alt_needs_picture" => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let details = json!({ "description": change.description, "picture": change.picture, "alt": change.alt });
        audit_log::append(&mut tx, actor, "product set", &format!("product {id}"), details).await?;
        let version = terms::version(&mut tx).await?;
        tx.commit().await?;
        Ok(Some((id, version)))
    }

    /// Renames a product, or removes it or its picture.
    pub async fn edit_product(
        &self,
        name: &str,
        edit: &ProductEdit,
        actor: &str,
    ) -> Result<EditedProduct, LedgerError> {
        let mut tx = self.0.begin().await?;
        let id = sqlx::query_scalar!("SELECT id FROM products WHERE name = $1 FOR UPDATE", name);
        let Some(id) = id.fetch_optional(&mut *tx).await? else { return Ok(EditedProduct::Unknown) };
        let (statement, action, details) = match edit {
            ProductEdit::Rename(to) => (
                // A picture that the old name describes is described by the new one.
                sqlx::query!(
                    "UPDATE products SET name = $2, picture_alt = CASE WHEN picture_alt = name THEN $2 ELSE picture_alt END
                     WHERE id = $1",
                    id,
                    to
                ),
                "product renamed",
                json!({ "before": name, "after": to }),
            ),
            ProductEdit::RemovePicture => (
                sqlx::query!("UPDATE products SET picture = NULL, picture_alt = '' WHERE id = $1 AND picture IS NOT NULL", id),
                "product picture removed",
                json!({}),
            ),
            ProductEdit::Remove => {
                (sqlx::query!("DELETE FROM products WHERE id = $1", id), "product removed", json!({ "name": name }))
            }
        };
        match statement.execute(&mut *tx).await.map_err(LedgerError::from) {
            Ok(done) if done.rows_affected() == 1 => {}
            Ok(_) => return Ok(EditedProduct::Refused),
            Err(LedgerError::Refused(by)) if by == "products_name_unique" || by == "sales_product_id_fkey" => {
                return Ok(EditedProduct::Refused);
            }
            Err(error) => return Err(error),
        }
        audit_log::append(&mut tx, actor, action, &format!("product {id}"), details).await?;
        let version = terms::version(&mut tx).await?;
        tx.commit().await?;
        Ok(EditedProduct::Done { id, version })
    }

    /// Clears pictures that were unused for a day. If the process dies between the statements, the next call clears the rest.
    pub async fn clear_unused_pictures(&self) -> Result<(), LedgerError> {
        sqlx::query!(
            "UPDATE pictures SET unused_since = now()
             WHERE unused_since IS NULL AND NOT EXISTS (SELECT FROM products WHERE picture = hash)"
        )
        .execute(&self.0.pool)
        .await?;
        self.0
            .run(sqlx::query!(
                "DELETE FROM pictures WHERE unused_since < now() - $1::text::interval
               AND NOT EXISTS (SELECT FROM products WHERE picture = hash)",
                UNUSED_FOR
            ))
            .await
    }

    pub async fn picture(&self, file: &PictureFile) -> Result<Option<Bytes>, LedgerError> {
        let found = sqlx::query_scalar!(
            "SELECT CASE $2::integer WHEN small_width THEN small WHEN large_width THEN large END FROM pictures WHERE hash = $1",
            file.hash(),
            file.width()
        )
        .fetch_optional(&self.0.pool)
        .await?;
        Ok(found.flatten().map(Bytes::from))
    }

    /// At most `limit` sales with ids above `after`, ordered by id.
    pub async fn sales_after(&self, after: Option<SaleId>, limit: i64) -> Result<Vec<Sale>, LedgerError> {
        let after = after.map_or(0, SaleId::get);
        let mut connection = self.0.pool.acquire().await?;
        let ids = sqlx::query_scalar!("SELECT id FROM sales WHERE id > $1 ORDER BY id LIMIT $2", after, limit);
        let ids = ids.fetch_all(&mut *connection).await?;
        let mut sales = load_sales(&mut connection, &ids).await?;
        sales.sort_unstable_by_key(|sale| sale.id);
        Ok(sales)
    }

    /// Products with names after `after`, ordered by name (`products_name_unique`). `text` is a part of the name, in any case.
    pub async fn products(
        &self,
        after: Option<&str>,
        text: Option<&str>,
        limit: i64,
    ) -> Result<Vec<Product>, LedgerError> {
        let rows = sqlx::query!(
            r#"SELECT id, name, description,
                      (SELECT picture FROM product_pictures WHERE product_id = id) AS "picture?: Json<Picture>"
               FROM products
               WHERE ($1::text IS NULL OR name > $1) AND ($2::text IS NULL OR position(lower($2) IN lower(name)) > 0)
               ORDER BY name LIMIT $3"#,
            after,
            text,
            limit
        );
        let rows = rows.fetch_all(&self.0.pool).await?.into_iter();
        Ok(rows.map(|row| product(row.id, row.name, row.description, row.picture)).collect())
    }

    /// The product of this name, by `products_name_unique`.
    pub async fn product_named(&self, name: &str) -> Result<Option<Product>, LedgerError> {
        let row = sqlx::query!(
            r#"SELECT id, name, description,
                      (SELECT picture FROM product_pictures WHERE product_id = id) AS "picture?: Json<Picture>"
               FROM products WHERE name = $1"#,
            name
        );
        let row = row.fetch_optional(&self.0.pool).await?;
        Ok(row.map(|row| product(row.id, row.name, row.description, row.picture)))
    }

    pub async fn catalog_version(&self) -> Result<i64, LedgerError> {
        terms::version(&mut *self.0.pool.acquire().await?).await
    }
}
