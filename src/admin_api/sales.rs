//! Sales, for those who manage them and those who look.

use actix_web::http::header::LOCATION;
use actix_web::web::{Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::sale_forms::{PlanForm, StatusForm, StockForm};
use crate::admin::AdminError;
use crate::admin::sales::{SaleFigures, SalePlan, WaveRow, parse_search};
use crate::domain::captcha::CaptchaKind;
use crate::domain::ids::{Invalid, SaleId, Units};
use crate::domain::json_object;
use crate::domain::sale::SalePhase;
use crate::http::AppState;
use crate::http::caller::as_caller;
use crate::http::codes::problems;
use crate::http::extract::Body;
use crate::http::problem::Problem;

/// A sale, as its manager sees it.
#[derive(Serialize, ToSchema)]
struct ManagedSale {
    id: SaleId,
    product: String,
    product_id: i64,
    price_cents: i64,
    /// Units that are left in PostgreSQL; -1 without a limit.
    stock: i64,
    /// Units that were ever put up for sale, with those of waves to come; -1 without a limit.
    total_stock: i64,
    per_user: Units,
    min_level: i64,
    captcha: CaptchaKind,
    /// Into how many parts the stock is divided.
    shards: u8,
    status: SalePhase,
    starts_at_ms: i64,
    ends_at_ms: i64,
    pay_within_s: i64,
}

impl ManagedSale {
    fn new(figures: SaleFigures, now_ms: i64) -> Self {
        let SaleFigures { sale, total_stock, stock } = figures;
        Self {
            id: sale.id,
            status: sale.phase_at(now_ms),
            product: sale.product,
            product_id: sale.product_id,
            price_cents: sale.price_cents,
            stock,
            total_stock,
            per_user: sale.per_user,
            min_level: sale.min_level,
            captcha: sale.captcha,
            shards: sale.shards.get(),
            starts_at_ms: sale.starts_at_ms,
            ends_at_ms: sale.ends_at_ms,
            pay_within_s: sale.pay_within_ms / 1000,
        }
    }
}

/// Sales, newest first.
#[derive(Serialize, ToSchema)]
struct ManagedSales {
    sales: Vec<ManagedSale>,
}

/// All of a sale.
#[derive(Serialize, ToSchema)]
struct ManagedSaleDetails {
    sale: ManagedSale,
    /// Whether the units of refunded orders are not for sale again.
    keep_refunded: bool,
    created_at_ms: i64,
    /// Stock that was planned for later, and stock that was added; the last one first, at most 1000.
    waves: Vec<ManagedWave>,
    /// The address of the sale's page for buyers.
    page: String,
}

/// Stock that goes on sale at one moment.
#[derive(Serialize, ToSchema)]
struct ManagedWave {
    units: i32,
    due_at_ms: i64,
    /// Null while the units are not for sale.
    released_at_ms: Option<i64>,
    /// Whether buyers were told of it in advance.
    planned: bool,
}

impl From<WaveRow> for ManagedWave {
    fn from(wave: WaveRow) -> Self {
        Self {
            units: wave.units,
            due_at_ms: wave.due_at.timestamp_millis(),
            released_at_ms: wave.released_at.map(|at| at.timestamp_millis()),
            planned: wave.planned,
        }
    }
}

/// The sale that was planned. It is published: its page is there, and it opens by itself.
#[derive(Serialize, ToSchema)]
struct PlannedSale {
    sale_id: SaleId,
    /// Whether every instance knows the sale already. The others will within seconds of recovering.
    everywhere: bool,
    /// The address of the sale's page for buyers.
    page: String,
}

/// The change of a sale is done.
#[derive(Serialize, ToSchema)]
struct SaleChanged {
    sale_id: SaleId,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SearchQuery {
    /// The most sales to return; 100 by default.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// Only sales that come after this one in the list: older ones.
    #[param(value_type = Option<SaleId>, nullable = false)]
    before: Option<String>,
    /// Only sales of this status.
    #[param(value_type = Option<SalePhase>, nullable = false)]
    status: Option<String>,
    /// A part of the product's name, in capitals or not.
    #[param(nullable = false, max_length = 200)]
    q: Option<String>,
}

problems!(NotListed: InvalidRequest, SignedOut, TemporarilyUnavailable);
problems!(NotShown: InvalidRequest, SignedOut, NotFound, TemporarilyUnavailable);
problems! {
    NotPlanned: InvalidRequest, SignedOut, Forbidden, ForgedRequest, TooSlow, UnworkableTerms, BodyTooLarge,
    TemporarilyUnavailable
}
problems! {
    NotChanged: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, Conflict, BodyTooLarge,
    TemporarilyUnavailable
}

/// Sales with their stock, newest first
#[utoipa::path(
    get,
    path = "/api/v1/admin/sales",
    operation_id = "list_managed_sales",
    tag = "admin",
    security(("session" = [])),
    params(SearchQuery),
    responses((status = 200, description = "Sales", body = ManagedSales), NotListed),
)]
pub async fn list(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let list = as_caller(request, &app_state, async move |console, caller| {
        let query = Query::<SearchQuery>::from_query(caller.request.query_string());
        let SearchQuery { limit, before, status, q } =
            query.map_err(|_| Invalid::new("limit, before, status and q", "must each be given once"))?.into_inner();
        let search = parse_search(limit.as_deref(), before.as_deref(), status.as_deref(), q.as_deref())?;
        console.sales(&search).await
    });
    let list = list.await?;
    let sales = list.sales.into_iter().map(|figures| ManagedSale::new(figures, list.now_ms)).collect();
    Ok(HttpResponse::Ok().json(ManagedSales { sales }))
}

/// Plan a sale
///
/// For managers and admins. The sale is published at once: its page is there when this answers, and it opens by itself at its start. A
/// request that was not answered may have planned the sale: look at the list before repeating it.
#[utoipa::path(
    post,
    path = "/api/v1/admin/sales",
    operation_id = "plan_sale",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    request_body = PlanForm,
    responses(
        (
            status = 201, description = "Planned", body = PlannedSale,
            headers(("Location" = String, description = "The sale's address in this API")),
        ),
        NotPlanned,
    ),
)]
pub async fn plan(request: HttpRequest, app_state: Data<AppState>, Body(body): Body) -> Result<HttpResponse, Problem> {
    let planned = as_caller(request, &app_state, async move |console, caller| {
        let form: PlanForm = json_object::from_slice(&body)?;
        console.plan_sale(&caller.account, form.terms()?).await
    });
    let planned = planned.await?;
    let sale = planned.sale;
    Ok(HttpResponse::Created().insert_header((LOCATION, format!("/api/v1/admin/sales/{sale}"))).json(PlannedSale {
        sale_id: sale,
        everywhere: planned.everywhere,
        page: page_of(sale),
    }))
}

/// One sale, with its waves
#[utoipa::path(
    get,
    path = "/api/v1/admin/sales/{id}",
    operation_id = "show_managed_sale",
    tag = "admin",
    security(("session" = [])),
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "The sale", body = ManagedSaleDetails), NotShown),
)]
pub async fn show(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let details =
        as_caller(request, &app_state, async move |console, caller| console.sale(named_sale(&caller.request)?).await);
    let details = details.await?;
    let SalePlan { refund_returns_stock, created_at, waves } = details.plan;
    let page = page_of(details.figures.sale.id);
    Ok(HttpResponse::Ok().json(ManagedSaleDetails {
        sale: ManagedSale::new(details.figures, details.now_ms),
        keep_refunded: !refund_returns_stock,
        created_at_ms: created_at.timestamp_millis(),
        waves: waves.into_iter().map(ManagedWave::from).collect(),
        page,
    }))
}

/// Pause, resume or close a sale
///
/// For managers and admins. Nobody can buy in a paused sale; `open` continues it. `closed` is final. Orders stay as they are.
#[utoipa::path(
    put,
    path = "/api/v1/admin/sales/{id}/status",
    operation_id = "set_sale_status",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    params(("id" = SaleId, Path, description = "The sale")),
    request_body = StatusForm,
    responses((status = 200, description = "Done", body = SaleChanged), NotChanged),
)]
pub async fn set_status(
    request: HttpRequest,
    app_state: Data<AppState>,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    let changed = as_caller(request, &app_state, async move |console, caller| {
        let sale = named_sale(&caller.request)?;
        let StatusForm { status } = json_object::from_slice(&body)?;
        console.set_sale_status(&caller.account, sale, status).await?;
        Ok(SaleChanged { sale_id: sale })
    });
    Ok(HttpResponse::Ok().json(changed.await?))
}

/// Add units to a sale's stock
///
/// For managers and admins. The units are for sale at once. A request that was not answered may have added them: look at the sale before
/// repeating it.
#[utoipa::path(
    post,
    path = "/api/v1/admin/sales/{id}/stock",
    operation_id = "add_stock",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    params(("id" = SaleId, Path, description = "The sale")),
    request_body = StockForm,
    responses((status = 200, description = "Done", body = SaleChanged), NotChanged),
)]
pub async fn add_stock(
    request: HttpRequest,
    app_state: Data<AppState>,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    let changed = as_caller(request, &app_state, async move |console, caller| {
        let sale = named_sale(&caller.request)?;
        let StockForm { units } = json_object::from_slice(&body)?;
        if units < 1 {
            return Err(Invalid::new("units", "must be 1 to 2147483647").into());
        }
        console.add_stock(&caller.account, sale, units).await?;
        Ok(SaleChanged { sale_id: sale })
    });
    Ok(HttpResponse::Ok().json(changed.await?))
}

/// Remove a sale that was never bought in
///
/// For managers and admins. A sale with orders can be closed.
#[utoipa::path(
    delete,
    path = "/api/v1/admin/sales/{id}",
    operation_id = "remove_sale",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "Done", body = SaleChanged), NotChanged),
)]
pub async fn remove(request: HttpRequest, app_state: Data<AppState>, _: Body) -> Result<HttpResponse, Problem> {
    let changed = as_caller(request, &app_state, async move |console, caller| {
        let sale = named_sale(&caller.request)?;
        console.remove_sale(&caller.account, sale).await?;
        Ok(SaleChanged { sale_id: sale })
    });
    Ok(HttpResponse::Ok().json(changed.await?))
}

/// The sale that the path names.
pub fn named_sale(request: &HttpRequest) -> Result<SaleId, AdminError> {
    Ok(SaleId::parse(request.match_info().query("id"))?)
}

/// The address of a sale's page for buyers.
pub fn page_of(sale: SaleId) -> String {
    format!("/sales/{sale}")
}
