//! Sales and products as they are shown.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Value, json};

use super::extract::{product_id, sale_id};
use super::problem::Problem;
use crate::domain::sale::Sale;
use crate::sale::till::Till;

/// Sales that are listed at most.
const LIST_MAX: usize = 100;

pub async fn list(till: Data<Till>) -> HttpResponse {
    let mut sales = Vec::new();
    for sale in till.catalog.newest(LIST_MAX) {
        sales.push(shown(&sale, &till).await);
    }
    HttpResponse::Ok().json(sales)
}

pub async fn show(request: HttpRequest, till: Data<Till>) -> Result<HttpResponse, Problem> {
    let sale = till.catalog.sale(sale_id(&request)?).await?.ok_or_else(Problem::unknown_sale)?;
    Ok(HttpResponse::Ok().json(shown(&sale, &till).await))
}

pub async fn product(request: HttpRequest, till: Data<Till>) -> Result<HttpResponse, Problem> {
    let product = till.catalog.product(product_id(&request)?).await?;
    Ok(HttpResponse::Ok().json(product.ok_or_else(Problem::not_found)?))
}

async fn shown(sale: &Sale, till: &Till) -> Value {
    json!({
        "id": sale.id,
        "product": { "id": sale.product_id, "name": sale.product },
        "price_cents": sale.price_cents,
        "starts_at_ms": sale.starts_at_ms,
        "ends_at_ms": sale.ends_at_ms,
        "status": sale.status_at(till.catalog.clock.now_ms()),
        "per_user": sale.per_user,
        "min_level": sale.min_level,
        "captcha": sale.captcha,
        "sold_out": till.is_sold_out(sale.id).await,
    })
}
