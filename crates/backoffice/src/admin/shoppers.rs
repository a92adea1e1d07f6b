//! What a buyer or a network address did in a sale, and blocking them there. For accounts that see buyers.

use serde::Serialize;
use utoipa::ToSchema;

use super::paging::{PAGE, cut};
use super::{AdminError, Office, operators_only, those_who_see_buyers_only};
use seckill_domain::account::Account;
use seckill_domain::ids::SaleId;
use seckill_domain::sale_blocks::Shopper;
use seckill_domain::text;
use seckill_postgres::sales::blocks::BlockChange;
pub use seckill_postgres::sales::blocks::{Block, ShopperOrder};

/// What a buyer or a network address did in a sale.
#[derive(Serialize, ToSchema)]
pub(crate) struct Activity {
    /// Newest first, at most 100. Those of an address are known until some time after the sale.
    pub(crate) purchases: Vec<ShopperOrder>,
    pub(crate) more: bool,
    /// Null unless blocked.
    pub(crate) block: Option<Block>,
}

impl Office {
    pub(crate) async fn activity(
        &self,
        account: &Account,
        sale: SaleId,
        shopper: &Shopper,
    ) -> Result<Activity, AdminError> {
        those_who_see_buyers_only(account)?;
        self.check_sale(sale).await?;
        let mut purchases = self.ledger.sales.purchases_of(sale, shopper, PAGE + 1).await?;
        let more = cut(&mut purchases, PAGE).is_some();
        let (kind, name) = (shopper.kind(), shopper.name());
        let blocks = self.ledger.sales.blocks(sale).await?;
        let block = blocks.into_iter().find(|block| block.kind == kind && block.name == name);
        Ok(Activity { purchases, more, block })
    }

    pub(crate) async fn blocks(&self, account: &Account, sale: SaleId) -> Result<Vec<Block>, AdminError> {
        those_who_see_buyers_only(account)?;
        self.check_sale(sale).await?;
        Ok(self.ledger.sales.blocks(sale).await?)
    }

    /// Blocks a buyer or an address in a sale, or, without a note, ends the block.
    pub(crate) async fn set_block(
        &self,
        account: &Account,
        sale: SaleId,
        shopper: &Shopper,
        note: Option<String>,
    ) -> Result<(), AdminError> {
        operators_only(account)?;
        self.check_sale(sale).await?;
        let note = note.map(|note| text::line(&note, "note", 1..=500)).transpose()?;
        match self.stores.set_block(sale, shopper, note.as_deref(), account.name.as_str()).await? {
            BlockChange::Done(_) => Ok(()),
            BlockChange::Unknown => Err(AdminError::Unknown("block")),
            BlockChange::Full => Err(AdminError::Conflict(format!("sale {sale} has 1000 blocks, which is the most"))),
        }
    }
}
