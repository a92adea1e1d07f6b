//! Products and their pictures.

use serde::Serialize;
use utoipa::ToSchema;

use super::{AdminError, Office, operators_only};
use seckill_buying::sale_work::manage::{ProductEdited, ProductSet};
use seckill_domain::account::Account;
use seckill_domain::ids::Invalid;
use seckill_domain::sale::{Product, ProductChange, ProductEdit, product_name};
use seckill_domain::text;
use seckill_postgres::sales::products::NewPicture;

/// The product as it is now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProductSet)]
pub(crate) struct ChangedProduct {
    pub(crate) product_id: i64,
    /// Whether every instance already shows the change. The others will within a second of recovering.
    pub(crate) everywhere: bool,
}

impl Office {
    /// Products by name, those whose name follows `after`; `text` is a part of the name.
    pub(crate) async fn products(
        &self,
        account: &Account,
        after: Option<&str>,
        text: Option<&str>,
        limit: i64,
    ) -> Result<Vec<Product>, AdminError> {
        operators_only(account)?;
        let part = |part: Option<&str>, field| part.map(|part| text::line(part, field, 0..=200)).transpose();
        let (after, text) = (part(after, "after")?, part(text, "q")?);
        Ok(self.ledger.sales.products(after.as_deref(), text.as_deref(), limit).await?)
    }

    pub(crate) async fn product_named(&self, account: &Account, name: &str) -> Result<Option<Product>, AdminError> {
        operators_only(account)?;
        let named = ProductChange { name: name.to_owned(), description: None, picture: None, alt: None }.check()?;
        Ok(self.ledger.sales.product_named(&named.name).await?)
    }

    pub(crate) async fn set_product(
        &self,
        account: &Account,
        name: String,
        description: Option<String>,
        picture_alt: Option<String>,
    ) -> Result<ChangedProduct, AdminError> {
        operators_only(account)?;
        let change = ProductChange { name, description, picture: None, alt: picture_alt };
        let change = change.check().map_err(as_the_api_names_it)?;
        self.change_product(account, &change, None).await
    }

    /// Checks that the account may set this product's picture, before the picture is read.
    pub(crate) fn check_picture_of(&self, account: &Account, name: &str) -> Result<(), AdminError> {
        operators_only(account)?;
        ProductChange { name: name.to_owned(), description: None, picture: None, alt: None }.check()?;
        Ok(())
    }

    /// Sets a product's picture, which was redrawn from a file. Makes the product where it is missing. The name describes the
    /// picture, because an earlier description would be of the earlier picture.
    pub(crate) async fn set_product_picture(
        &self,
        account: &Account,
        name: String,
        picture: &NewPicture,
    ) -> Result<ChangedProduct, AdminError> {
        operators_only(account)?;
        let (alt, hash) = (Some(name.clone()), Some(picture.hash.clone()));
        let change = ProductChange { name, description: None, picture: hash, alt }.check()?;
        self.change_product(account, &change, Some(picture)).await
    }

    /// Renames a product, or removes it or its picture.
    pub(crate) async fn edit_product(
        &self,
        account: &Account,
        name: &str,
        edit: ProductEdit,
    ) -> Result<ChangedProduct, AdminError> {
        operators_only(account)?;
        let name = product_name(name, "name")?;
        let edit = match edit {
            ProductEdit::Rename(to) => ProductEdit::Rename(product_name(&to, "name")?),
            removal => removal,
        };
        match self.stores.edit_product(&name, &edit, account.name.as_str()).await? {
            ProductEdited::Done { id, known_everywhere } => {
                Ok(ChangedProduct { product_id: id, everywhere: known_everywhere })
            }
            ProductEdited::Unknown => Err(AdminError::Unknown("product")),
            ProductEdited::Refused(why) => Err(AdminError::Conflict(why.to_owned())),
        }
    }

    async fn change_product(
        &self,
        account: &Account,
        change: &ProductChange,
        picture: Option<&NewPicture>,
    ) -> Result<ChangedProduct, AdminError> {
        match self.stores.set_product(change, picture, account.name.as_str()).await? {
            ProductSet::Done { id, known_everywhere } => {
                Ok(ChangedProduct { product_id: id, everywhere: known_everywhere })
            }
            ProductSet::NoPicture => {
                Err(AdminError::Conflict("the product has no picture that picture_alt could describe".to_owned()))
            }
        }
    }
}

fn as_the_api_names_it(wrong: Invalid) -> Invalid {
    if wrong.field == "alt" { Invalid { field: "picture_alt", ..wrong } } else { wrong }
}
