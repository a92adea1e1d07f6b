//! Whether a sale is open, and its purchase key, as a script and as JSON. A sale's page polls it around the start.

use actix_web::http::header::CONTENT_TYPE;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use utoipa::ToSchema;

use crate::sale::thread_state::ThreadState;
use seckill_domain::ids::SaleId;
use seckill_domain::sale::SalePhase;
use seckill_http::Answer;
use seckill_http::codes::{Code, problems};
use seckill_http::extract::sale_id;
use seckill_http::problem::Problem;

/// Whether a sale is open, and its purchase key.
#[derive(Serialize, ToSchema)]
struct SaleState {
    open: bool,
    /// The purchase key while the sale is open; otherwise a key that buys nothing.
    key: String,
    now_ms: i64,
    starts_at_ms: i64,
    ends_at_ms: i64,
    sold_out: bool,
    /// How far the sale is sold, in whole per cent, rounded down. Absent unless the sale shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 100)]
    sold_percent: Option<u8>,
    status: SalePhase,
    /// Changes when the sale's page changes, apart from its times. The page has it too, and loads itself again when they differ.
    #[schema(example = "0123456789abcdef")]
    terms: String,
}

problems!(NoState: InvalidRequest, UnknownSale, TemporarilyUnavailable);

async fn state(request: &HttpRequest, thread: &ThreadState) -> Result<SaleState, Problem> {
    let sale = thread.catalog.sale(sale_id(request)?).await?.ok_or(Code::UnknownSale)?;
    let units = thread.shown_units(&sale).await;
    let now_ms = thread.catalog.clock.now_ms();
    Ok(SaleState {
        open: sale.is_open_at(now_ms),
        key: sale.key_at(now_ms).to_owned(),
        now_ms,
        starts_at_ms: sale.starts_at_ms,
        ends_at_ms: sale.ends_at_ms,
        sold_out: units.is_sold_out,
        sold_percent: units.available.and_then(|available| sale.sold_percent(available, now_ms)),
        status: sale.phase_at(now_ms),
        terms: sale.terms(),
    })
}

/// Whether a sale is open, and its purchase key
#[utoipa::path(
    get,
    path = "/api/v1/sales/{id}/state",
    tag = "sales",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "Its current state", body = SaleState), NoState),
)]
pub(super) async fn sale_state(request: HttpRequest, thread: Data<ThreadState>) -> Answer {
    let state = state(&request, &thread).await?;
    Ok(HttpResponse::Ok().json(state))
}

/// The state of a sale as a script
///
/// The script sets `window.seckill` to the state.
#[utoipa::path(
    get,
    path = "/sales/{id}/state.js",
    tag = "sales",
    params(
        ("id" = SaleId, Path, description = "The sale"),
        ("r" = Option<String>, Query, description = "Any text: it keeps caches from answering"),
    ),
    responses(
        (
            status = 200, description = "`window.seckill = …;`", body = String,
            content_type = "text/javascript; charset=utf-8",
        ),
        NoState,
    ),
)]
pub(super) async fn sale_state_script(request: HttpRequest, thread: Data<ThreadState>) -> Answer {
    let state = serde_json::to_string(&state(&request, &thread).await?).map_err(Problem::invalid)?;
    Ok(HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, "text/javascript; charset=utf-8"))
        .body(format!("window.seckill = {state};\n")))
}
