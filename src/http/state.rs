//! The flag and the key: what a sale's page asks for near the start (`state.js`, and the same as JSON).

use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use utoipa::ToSchema;

use super::codes::problems;
use super::extract::sale_id;
use super::problem::Problem;
use crate::domain::ids::SaleId;
use crate::sale::thread_state::ThreadState;

/// What `window.seckill` holds.
#[derive(Serialize, ToSchema)]
#[schema(as = SaleState)]
struct State {
    open: bool,
    /// The purchase key while the sale is open; else one that buys nothing.
    key: String,
    now_ms: i64,
    starts_at_ms: i64,
    ends_at_ms: i64,
    sold_out: bool,
}

problems!(NoState: InvalidRequest, UnknownSale, TemporarilyUnavailable);

async fn state(request: &HttpRequest, thread: &ThreadState) -> Result<State, Problem> {
    let sale = thread.catalog.sale(sale_id(request)?).await?.ok_or_else(Problem::unknown_sale)?;
    let sold_out = thread.is_sold_out(sale.id).await;
    let now_ms = thread.catalog.clock.now_ms();
    Ok(State {
        open: sale.is_open_at(now_ms),
        key: sale.key_at(now_ms).to_owned(),
        now_ms,
        starts_at_ms: sale.starts_at_ms,
        ends_at_ms: sale.ends_at_ms,
        sold_out,
    })
}

/// How a sale stands, and its key
#[utoipa::path(
    get,
    path = "/api/v1/sales/{id}/state",
    operation_id = "sale_state",
    tag = "sales",
    params(("id" = SaleId, Path, description = "The sale")),
    responses(
        (
            status = 200, description = "Its state at this moment", body = State,
            headers(("Cache-Control" = String, description = "`no-store`")),
        ),
        NoState,
    ),
)]
pub async fn json(request: HttpRequest, thread: Data<ThreadState>) -> Result<HttpResponse, Problem> {
    let state = state(&request, &thread).await?;
    Ok(HttpResponse::Ok().insert_header((CACHE_CONTROL, "no-store")).json(state))
}

/// The same as a script
///
/// Sets `window.seckill` to the sale's state.
#[utoipa::path(
    get,
    path = "/sales/{id}/state.js",
    operation_id = "sale_state_script",
    tag = "sales",
    params(
        ("id" = SaleId, Path, description = "The sale"),
        ("r" = Option<String>, Query, description = "Anything: it makes the address new to caches"),
    ),
    responses(
        (
            status = 200, description = "`window.seckill = …;`", body = String,
            content_type = "text/javascript; charset=utf-8",
            headers(("Cache-Control" = String, description = "`no-store`")),
        ),
        NoState,
    ),
)]
pub async fn script(request: HttpRequest, thread: Data<ThreadState>) -> Result<HttpResponse, Problem> {
    let state = serde_json::to_string(&state(&request, &thread).await?).map_err(Problem::invalid)?;
    Ok(HttpResponse::Ok()
        .insert_header((CACHE_CONTROL, "no-store"))
        .insert_header((CONTENT_TYPE, "text/javascript; charset=utf-8"))
        .body(format!("window.seckill = {state};\n")))
}
