//! Drafts of sales: forms that are not published. For operators.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{AdminError, Office, found, operators_only};
use seckill_domain::account::Account;
use seckill_domain::ids::Invalid;
use seckill_domain::json_object;
use seckill_domain::text;
pub use seckill_postgres::sales::drafts::DraftRow;

const FIELDS_MAX: usize = 40;
const NAME_MAX: usize = 40;
const TEXT_MAX: usize = 4000;

/// A draft of a sale.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DraftForm {
    /// The product's name, for the list of drafts. It may be empty.
    #[schema(max_length = 200, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]*$")]
    product: String,
    /// The fields of the form, as they were typed. Nothing checks them before the sale is planned.
    #[serde(deserialize_with = "json_object::list")]
    #[schema(max_items = 40)]
    form: Vec<DraftField>,
}

/// A field of a form.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DraftField {
    #[schema(pattern = "^[a-z_]{1,40}$")]
    pub(crate) name: String,
    #[schema(max_length = 4000, pattern = "^[^\\x00]*$")]
    pub(crate) text: String,
}

impl DraftForm {
    fn check(self) -> Result<(String, serde_json::Value), AdminError> {
        let product = text::line(&self.product, "product", 0..=200)?;
        if self.form.len() > FIELDS_MAX {
            return Err(Invalid::new("form", "must have at most 40 fields").into());
        }
        for DraftField { name, text } in &self.form {
            let is_name =
                (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(|b| b == b'_' || b.is_ascii_lowercase());
            // PostgreSQL's JSON has no character of code 0.
            if !is_name || text.chars().count() > TEXT_MAX || text.contains('\0') {
                return Err(
                    Invalid::new("form", "must have names of a-z and _, and texts of at most 4000 characters").into()
                );
            }
        }
        Ok((product, serde_json::to_value(self.form)?))
    }
}

impl Office {
    /// All drafts, the last changed one first.
    pub(crate) async fn drafts(&self, account: &Account) -> Result<Vec<DraftRow>, AdminError> {
        operators_only(account)?;
        Ok(self.ledger.sales.drafts().await?)
    }

    pub(crate) async fn draft(&self, account: &Account, draft: Uuid) -> Result<Vec<DraftField>, AdminError> {
        operators_only(account)?;
        let form = self.ledger.sales.draft_form(draft).await?.ok_or(AdminError::Unknown("draft"))?;
        Ok(serde_json::from_value(form)?)
    }

    pub(crate) async fn add_draft(&self, account: &Account, form: DraftForm) -> Result<Uuid, AdminError> {
        operators_only(account)?;
        let (product, form) = form.check()?;
        let added = self.ledger.sales.add_draft(&product, &form, account.name.as_str()).await?;
        added.ok_or_else(|| {
            AdminError::Conflict("there are 200 drafts, and no more are kept: remove one first".to_owned())
        })
    }

    pub(crate) async fn set_draft(&self, account: &Account, draft: Uuid, form: DraftForm) -> Result<(), AdminError> {
        operators_only(account)?;
        let (product, form) = form.check()?;
        found(self.ledger.sales.set_draft(draft, &product, &form, account.name.as_str()).await?, "draft")
    }

    pub(crate) async fn remove_draft(&self, account: &Account, draft: Uuid) -> Result<(), AdminError> {
        operators_only(account)?;
        found(self.ledger.sales.remove_draft(draft, account.name.as_str()).await?, "draft")
    }
}
