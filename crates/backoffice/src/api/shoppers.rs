//! What a buyer or a network address did in a sale, and blocking them there.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::sales::named_sale;
use super::{Answer, NotChanged};
use crate::admin::shoppers::{Activity, Block};
use crate::api::Ask;
use seckill_domain::ids::{Invalid, SaleId};
use seckill_domain::sale_blocks::Shopper;
use seckill_http::codes::problems;

/// A buyer or a network address: one of the two.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ShopperQuery {
    /// A buyer's id, as in the token.
    #[param(nullable = false, pattern = "^[^\\u0000-\\u001F\\u007F-\\u009F]{1,128}$")]
    pub(crate) buyer: Option<String>,
    /// An IPv4 address, an IPv6 address, or an IPv6 network with /64.
    #[param(nullable = false)]
    pub(crate) address: Option<String>,
}

impl ShopperQuery {
    pub(crate) fn shopper(&self) -> Result<Shopper, Invalid> {
        let given = |text: &'_ Option<String>| text.clone().filter(|text| !text.is_empty());
        Shopper::parse(given(&self.buyer).as_deref(), given(&self.address).as_deref())
    }
}

/// The reason for a block.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BlockForm {
    /// One line, for colleagues.
    #[schema(
        max_length = 500,
        pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]*[^\\s\\x00-\\x1F\\x7F-\\x9F][^\\x00-\\x1F\\x7F-\\x9F]*$"
    )]
    note: String,
}

/// All blocks of a sale.
#[derive(Serialize, ToSchema)]
struct Blocks {
    blocks: Vec<Block>,
}

/// The block is set or ended.
#[derive(Serialize, ToSchema)]
struct BlockChanged {
    sale_id: SaleId,
}

problems!(NotShown: InvalidRequest, SignedOut, Forbidden, NotFound, TemporarilyUnavailable);

/// What a buyer or a network address did in a sale
///
/// For managers and admins.
#[utoipa::path(
    get,
    path = "/api/v1/admin/sales/{id}/activity",
    params(("id" = SaleId, Path, description = "The sale"), ShopperQuery),
    responses((status = 200, description = "Purchases, newest first", body = Activity), NotShown),
)]
pub(super) async fn show_activity(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let shopper = caller.query::<ShopperQuery>()?.shopper()?;
        office.activity(&caller.account, named_sale(caller)?, &shopper).await
    })
    .await
}

/// Who may not buy in a sale
///
/// For managers and admins. The newest blocks first, 1000 at most.
#[utoipa::path(
    get,
    path = "/api/v1/admin/sales/{id}/blocks",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "All blocks of the sale", body = Blocks), NotShown),
)]
pub(super) async fn list_blocks(ask: Ask) -> Answer {
    ask.answer(async |office, caller| Ok(Blocks { blocks: office.blocks(&caller.account, named_sale(caller)?).await? }))
        .await
}

/// Block a buyer or a network address in a sale
///
/// For managers and admins. Later purchases are refused (403 `not-allowed`). Orders stay, and repeats of a purchase get its answer.
#[utoipa::path(
    put,
    path = "/api/v1/admin/sales/{id}/blocks",
    params(("id" = SaleId, Path, description = "The sale"), ShopperQuery),
    request_body = BlockForm,
    responses((status = 200, description = "Done", body = BlockChanged), NotChanged),
)]
pub(super) async fn set_block(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let (sale_id, BlockForm { note }) = (named_sale(caller)?, caller.body()?);
        let shopper = caller.query::<ShopperQuery>()?.shopper()?;
        office.set_block(&caller.account, sale_id, &shopper, Some(note)).await?;
        Ok(BlockChanged { sale_id })
    })
    .await
}

/// End a block
///
/// For managers and admins.
#[utoipa::path(
    delete,
    path = "/api/v1/admin/sales/{id}/blocks",
    params(("id" = SaleId, Path, description = "The sale"), ShopperQuery),
    responses((status = 200, description = "Done", body = BlockChanged), NotChanged),
)]
pub(super) async fn end_block(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let sale_id = named_sale(caller)?;
        let shopper = caller.query::<ShopperQuery>()?.shopper()?;
        office.set_block(&caller.account, sale_id, &shopper, None).await?;
        Ok(BlockChanged { sale_id })
    })
    .await
}
