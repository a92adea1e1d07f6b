//! Forms of sales that are not published yet.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use sqlx::{Executor, PgConnection};
use uuid::Uuid;

use crate::{LedgerError, Sales, audit_log};

/// Drafts that are kept at most: more than the people of a shop oversee.
pub const DRAFTS_MAX: i64 = 200;

#[derive(Debug, Clone)]
pub struct DraftRow {
    pub id: Uuid,
    pub product: String,
    pub updated_by: String,
    pub updated_at: DateTime<Utc>,
}

impl Sales {
    /// All drafts, the last changed one first.
    pub async fn drafts(&self) -> Result<Vec<DraftRow>, LedgerError> {
        let rows = sqlx::query_as!(
            DraftRow,
            "SELECT id, product, updated_by, updated_at FROM sale_drafts ORDER BY updated_at DESC, id LIMIT $1",
            DRAFTS_MAX
        );
        Ok(rows.fetch_all(&self.0.pool).await?)
    }

    /// The fields of a draft, as they were saved.
    pub async fn draft_form(&self, draft: Uuid) -> Result<Option<Value>, LedgerError> {
        let form = sqlx::query_scalar!("SELECT form FROM sale_drafts WHERE id = $1", draft);
        Ok(form.fetch_optional(&self.0.pool).await?)
    }

    /// Keeps a new draft. `None` if there are as many as may be.
    pub async fn add_draft(&self, product: &str, form: &Value, actor: &str) -> Result<Option<Uuid>, LedgerError> {
        let mut tx = self.0.begin().await?;
        // Two at a time would both count the same drafts.
        (&mut *tx).execute("LOCK TABLE sale_drafts IN SHARE ROW EXCLUSIVE MODE").await?;
        let added = sqlx::query_scalar!(
            "INSERT INTO sale_drafts (product, form, updated_by)
             SELECT $1, $2, $3 WHERE (SELECT count(*) FROM sale_drafts) < $4::bigint RETURNING id",
            product,
            form,
            actor,
            DRAFTS_MAX
        );
        let Some(id) = added.fetch_optional(&mut *tx).await? else { return Ok(None) };
        audit_log::append(&mut tx, actor, "draft saved", &format!("draft {id}"), json!({ "product": product })).await?;
        tx.commit().await?;
        Ok(Some(id))
    }

    /// Replaces a draft. Returns `false` if there is no such draft.
    pub async fn set_draft(&self, draft: Uuid, product: &str, form: &Value, actor: &str) -> Result<bool, LedgerError> {
        let mut tx = self.0.begin().await?;
        let set = sqlx::query!(
            "UPDATE sale_drafts SET product = $2, form = $3, updated_by = $4, updated_at = now() WHERE id = $1",
            draft,
            product,
            form,
            actor
        );
        if set.execute(&mut *tx).await?.rows_affected() == 0 {
            return Ok(false);
        }
        let subject = format!("draft {draft}");
        audit_log::append(&mut tx, actor, "draft saved", &subject, json!({ "product": product })).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Returns `false` if there is no such draft.
    pub async fn remove_draft(&self, draft: Uuid, actor: &str) -> Result<bool, LedgerError> {
        let mut tx = self.0.begin().await?;
        if !delete(&mut tx, draft).await? {
            return Ok(false);
        }
        audit_log::append(&mut tx, actor, "draft removed", &format!("draft {draft}"), json!({})).await?;
        tx.commit().await?;
        Ok(true)
    }
}

pub(super) async fn delete(tx: &mut PgConnection, draft: Uuid) -> Result<bool, LedgerError> {
    let deleted = sqlx::query!("DELETE FROM sale_drafts WHERE id = $1", draft);
    Ok(deleted.execute(tx).await?.rows_affected() == 1)
}
