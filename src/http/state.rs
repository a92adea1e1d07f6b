//! The flag and the key: what a sale's page asks for near the start (`state.js`, and the same as JSON).

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;

use super::Counter;
use super::extract::sale_id;
use super::problem::Problem;
use crate::domain::ids::SaleId;
use crate::gate::Gate;

/// What `window.seckill` holds.
#[derive(Serialize)]
struct State {
    open: bool,
    /// The purchase key while the sale is open; else one that buys nothing.
    key: String,
    now_ms: i64,
    starts_at_ms: i64,
    ends_at_ms: i64,
    sold_out: bool,
}

/// Whether sales are sold out, as one thread saw it a moment ago. However many pages ask, Redis hears of it rarely.
#[derive(Default)]
pub struct StateCache {
    seen: RefCell<HashMap<SaleId, (Instant, bool)>>,
}

impl StateCache {
    const GOOD_FOR: Duration = Duration::from_millis(200);
    const SALES_MAX: usize = 1024;

    /// A sale whose figures cannot be had is not called sold out: the purchase itself will say.
    pub async fn sold_out(&self, sale: SaleId, gate: &Gate) -> bool {
        if let Some((seen, sold_out)) = self.seen.borrow().get(&sale)
            && seen.elapsed() < Self::GOOD_FOR
        {
            return *sold_out;
        }
        let view = gate.sale_view(sale).await.ok().flatten();
        let sold_out = view.is_some_and(|view| view.serving && view.available == Some(0));
        let mut seen = self.seen.borrow_mut();
        if seen.len() >= Self::SALES_MAX {
            seen.clear();
        }
        seen.insert(sale, (Instant::now(), sold_out));
        sold_out
    }
}

async fn state(request: &HttpRequest, counter: &Counter) -> Result<State, Problem> {
    let sale = counter.till.catalog.get(sale_id(request)?).ok_or(Problem::unknown_sale())?;
    let sold_out = counter.states.sold_out(sale.id, &counter.till.gate).await;
    let now_ms = counter.till.catalog.clock.now_ms();
    Ok(State {
        open: sale.is_open_at(now_ms),
        key: sale.key_at(now_ms).to_owned(),
        now_ms,
        starts_at_ms: sale.starts_at_ms,
        ends_at_ms: sale.ends_at_ms,
        sold_out,
    })
}

pub async fn json(request: HttpRequest, counter: Data<Counter>) -> Result<HttpResponse, Problem> {
    let state = state(&request, &counter).await?;
    Ok(HttpResponse::Ok().insert_header((CACHE_CONTROL, "no-store")).json(state))
}

pub async fn script(request: HttpRequest, counter: Data<Counter>) -> Result<HttpResponse, Problem> {
    let state = serde_json::to_string(&state(&request, &counter).await?).map_err(Problem::invalid)?;
    Ok(HttpResponse::Ok()
        .insert_header((CACHE_CONTROL, "no-store"))
        .insert_header((CONTENT_TYPE, "text/javascript; charset=utf-8"))
        .body(format!("window.seckill = {state};\n")))
}
