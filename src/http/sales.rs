//! Sales and products as they are shown.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Value, json};

use super::Counter;
use super::extract::sale_id;
use super::problem::Problem;
use crate::domain::sale::Sale;

/// Sales that are listed at most.
const LIST_MAX: usize = 100;

pub async fn list(counter: Data<Counter>) -> HttpResponse {
    let mut sales = Vec::new();
    for sale in counter.till.catalog.newest(LIST_MAX) {
        sales.push(shown(&sale, &counter).await);
    }
    HttpResponse::Ok().json(sales)
}

pub async fn show(request: HttpRequest, counter: Data<Counter>) -> Result<HttpResponse, Problem> {
    let sale = counter.till.catalog.get(sale_id(&request)?).ok_or(Problem::unknown_sale())?;
    Ok(HttpResponse::Ok().json(shown(&sale, &counter).await))
}

pub async fn product(request: HttpRequest, counter: Data<Counter>) -> Result<HttpResponse, Problem> {
    // A product's number is written as a sale's is.
    let product = counter.till.ledger.product(sale_id(&request)?.get()).await?;
    Ok(HttpResponse::Ok().json(product.ok_or(Problem::not_found())?))
}

async fn shown(sale: &Sale, counter: &Counter) -> Value {
    json!({
        "id": sale.id,
        "product": { "id": sale.product_id, "name": sale.product },
        "price_cents": sale.price_cents,
        "starts_at_ms": sale.starts_at_ms,
        "ends_at_ms": sale.ends_at_ms,
        "status": sale.status_at(counter.till.catalog.clock.now_ms()),
        "per_user": sale.per_user,
        "min_level": sale.min_level,
        "captcha": sale.captcha,
        "sold_out": counter.states.sold_out(sale.id, &counter.till.gate).await,
    })
}
