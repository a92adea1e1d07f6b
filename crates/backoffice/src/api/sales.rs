//! Sales: managers change them, all accounts see them.

use actix_web::HttpResponse;
use actix_web::http::header::LOCATION;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{Answer, NotChanged, NotReadOne, NotReadSome};
use crate::admin::AdminError;
use crate::admin::paging::limit;
use crate::admin::sale_form::{ChangeForm, PlanForm};
use crate::admin::sales::{LapsedHolds, ManagedSale, Planned, SaleDetails, SaleQuery};
use crate::api::{Ask, Caller};
use seckill_domain::ids::{Invalid, SaleId};
use seckill_domain::sale::SaleStatus;
use seckill_http::codes::problems;
use seckill_http::extract::idempotency_key;

/// The status that a sale shall have.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct StatusForm {
    /// `closed` is final.
    status: SaleStatus,
}

/// Units to add to a sale's stock.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct StockForm {
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    units: i32,
}

/// A page of sales, newest first.
#[derive(Serialize, ToSchema)]
struct ManagedSales {
    sales: Vec<ManagedSale>,
    /// `before` of the next page; null on the last one.
    next_before: Option<SaleId>,
}

/// The change of a sale is done.
#[derive(Serialize, ToSchema)]
struct SaleChanged {
    sale_id: SaleId,
}

/// Who let holds lapse, most first.
#[derive(Serialize, ToSchema)]
struct LapsedLines {
    lapsed: Vec<LapsedHolds>,
    /// Whether there are more than `limit`.
    more: bool,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LapsedQuery {
    /// One line for each `buyer` (by default), or for each `address`: an IPv4 address, or an IPv6 /64.
    #[param(nullable = false, pattern = "^(buyer|address)$")]
    by: Option<String>,
    /// The most lines to return; 100 by default.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<String>,
}

problems!(NoLapsedHolds: InvalidRequest, SignedOut, Forbidden, NotFound, TemporarilyUnavailable);
problems! {
    NotChangedTerms: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, Conflict, UnworkableTerms, BodyTooLarge,
    TemporarilyUnavailable
}
problems! {
    NotAdded: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, Conflict, BodyTooLarge, IdempotencyMismatch,
    TemporarilyUnavailable
}
problems! {
        NotPlanned: InvalidRequest, SignedOut, Forbidden, ForgedRequest, TooSlow, Conflict, UnworkableTerms, BodyTooLarge,
    TemporarilyUnavailable
}

/// Sales with their stock, newest first
#[utoipa::path(
    get,
    path = "/api/v1/admin/sales",
    params(SaleQuery),
    responses((status = 200, description = "Sales", body = ManagedSales), NotReadSome),
)]
pub(super) async fn list_managed_sales(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let search = caller.query::<SaleQuery>()?.search()?;
        let (sales, next_before) = office.sales(search).await?;
        Ok(ManagedSales { sales, next_before })
    })
    .await
}

/// Plan a sale
///
/// For managers and admins. The sale is published at once: its page is there when this answers, and it opens by itself at its start. A
/// request that was not answered may have planned the sale: look at the list before repeating it.
#[utoipa::path(
    post,
    path = "/api/v1/admin/sales",
    request_body = PlanForm,
    responses(
        (
            status = 201, description = "Planned", body = Planned,
            headers(("Location" = String, description = "The sale's address in this API")),
        ),
        NotPlanned,
    ),
)]
pub(super) async fn plan_sale(ask: Ask) -> Answer {
    let planned = ask.act(async |office, caller| office.plan_sale(&caller.account, caller.body()?).await).await?;
    let address = format!("/api/v1/admin/sales/{}", planned.sale_id);
    Ok(HttpResponse::Created().insert_header((LOCATION, address)).json(planned))
}

/// One sale, with its waves
#[utoipa::path(
    get,
    path = "/api/v1/admin/sales/{id}",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "The sale", body = SaleDetails), NotReadOne),
)]
pub(super) async fn show_managed_sale(ask: Ask) -> Answer {
    ask.answer(async |office, caller| Ok(office.counted_sale(named_sale(caller)?).await?.0)).await
}

/// Change a sale's terms
///
/// For managers and admins. Absent fields keep their values; a repeat changes nothing. At any time before the end: `ends_at_ms`, `stock` (never
/// below the units sold), future `waves`, `keep_refunded`, `show_stock`. Before the first purchase also `starts_at_ms`, and, before the start or while
/// the sale is paused: `product`, `price_cents`, `currency`, `per_user`, `min_level`, `captcha`, `pay_within_s`. `shards` never changes. Nobody can buy
/// until Redis is refilled: half a second, and one to two seconds more for each 100,000 purchases.
#[utoipa::path(
    patch,
    path = "/api/v1/admin/sales/{id}",
    params(("id" = SaleId, Path, description = "The sale")),
    request_body = ChangeForm,
    responses((status = 200, description = "Done", body = SaleChanged), NotChangedTerms),
)]
pub(super) async fn change_sale(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let sale_id = named_sale(caller)?;
        office.change_sale(&caller.account, sale_id, caller.body()?).await?;
        Ok(SaleChanged { sale_id })
    })
    .await
}

/// Pause, resume or close a sale
///
/// For managers and admins. Nobody can buy in a paused sale; `open` continues it. `closed` is final. Orders stay as they are.
#[utoipa::path(
    put,
    path = "/api/v1/admin/sales/{id}/status",
    params(("id" = SaleId, Path, description = "The sale")),
    request_body = StatusForm,
    responses((status = 200, description = "Done", body = SaleChanged), NotChanged),
)]
pub(super) async fn set_sale_status(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let sale_id = named_sale(caller)?;
        let StatusForm { status } = caller.body()?;
        office.set_sale_status(&caller.account, sale_id, status).await?;
        Ok(SaleChanged { sale_id })
    })
    .await
}

/// Add units to a sale's stock
///
/// For managers and admins. The units are for sale at once. A repeat with the same `Idempotency-Key` adds nothing. Without a key, a request
/// that was not answered may have added them: look at the sale before repeating it.
#[utoipa::path(
    post,
    path = "/api/v1/admin/sales/{id}/stock",
    params(
        ("id" = SaleId, Path, description = "The sale"),
        (
            "Idempotency-Key" = Option<String>, Header, nullable = false, pattern = "^[!-~]{1,200}$",
            description = "Chosen by the client, a new one for each addition: 1 to 200 visible ASCII characters",
        ),
    ),
    request_body = StockForm,
    responses((status = 200, description = "Done", body = SaleChanged), NotAdded),
)]
pub(super) async fn add_stock(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let sale_id = named_sale(caller)?;
        let StockForm { units } = caller.body()?;
        if units < 1 {
            return Err(Invalid::new("units", "must be 1 to 2147483647").into());
        }
        let key = idempotency_key(caller.request.headers())?;
        office.add_stock(&caller.account, sale_id, units, key.as_ref()).await?;
        Ok(SaleChanged { sale_id })
    })
    .await
}

/// Remove a sale that was never bought in
///
/// For managers and admins. A sale with orders can be closed.
#[utoipa::path(
    delete,
    path = "/api/v1/admin/sales/{id}",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "Done", body = SaleChanged), NotChanged),
)]
pub(super) async fn remove_sale(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let sale_id = named_sale(caller)?;
        office.remove_sale(&caller.account, sale_id).await?;
        Ok(SaleChanged { sale_id })
    })
    .await
}

/// Who let holds of a sale lapse, most first
///
/// For operators. A hold lapses when it is not paid in time. A buyer with many lapsed holds keeps others from buying.
#[utoipa::path(
    get,
    path = "/api/v1/admin/sales/{id}/lapsed-holds",
    params(("id" = SaleId, Path, description = "The sale"), LapsedQuery),
    responses((status = 200, description = "By buyer, or by address", body = LapsedLines), NoLapsedHolds),
)]
pub(super) async fn lapsed_holds(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let (sale, query) = (named_sale(caller)?, caller.query::<LapsedQuery>()?);
        let by_address = match query.by.as_deref() {
            None | Some("buyer") => false,
            Some("address") => true,
            Some(_) => return Err(Invalid::new("by", "must be buyer or address").into()),
        };
        let (lapsed, more) = office.lapsed_holds(&caller.account, sale, by_address, limit(&query.limit)?).await?;
        Ok(LapsedLines { lapsed, more })
    })
    .await
}

pub(crate) fn named_sale(caller: &Caller) -> Result<SaleId, AdminError> {
    Ok(SaleId::parse(caller.part("id"))?)
}
