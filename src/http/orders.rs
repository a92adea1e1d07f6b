//! A buyer's own orders.

use actix_web::web::{Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use serde::Deserialize;

use super::Reception;
use super::extract::order_id;
use super::problem::Problem;
use crate::domain::ids::SaleId;
use crate::sale::counter::Cancellation;
use crate::sale::till::Till;

#[derive(Deserialize)]
pub struct ListQuery {
    sale_id: Option<String>,
}

pub async fn show(request: HttpRequest, till: Data<Till>, reception: Data<Reception>) -> Result<HttpResponse, Problem> {
    let buyer = reception.tokens.buyer(&request, till.catalog.clock.now_ms())?;
    let order = till.order_of(&buyer.user, order_id(&request)?).await?;
    Ok(HttpResponse::Ok().json(order.ok_or_else(Problem::unknown_order)?))
}

pub async fn list(request: HttpRequest, till: Data<Till>, reception: Data<Reception>) -> Result<HttpResponse, Problem> {
    let buyer = reception.tokens.buyer(&request, till.catalog.clock.now_ms())?;
    let query = Query::<ListQuery>::from_query(request.query_string()).map_err(Problem::invalid)?;
    let sale = query.sale_id.as_deref().map(SaleId::parse).transpose()?;
    Ok(HttpResponse::Ok().json(till.orders_of(&buyer.user, sale).await?))
}

pub async fn cancel(
    request: HttpRequest,
    till: Data<Till>,
    reception: Data<Reception>,
) -> Result<HttpResponse, Problem> {
    let buyer = reception.tokens.buyer(&request, till.catalog.clock.now_ms())?;
    match till.cancel(&buyer.user, order_id(&request)?).await? {
        Cancellation::Cancelled(order) => Ok(HttpResponse::Ok().json(order)),
        Cancellation::Unknown => Err(Problem::unknown_order()),
        Cancellation::NotReady => Err(Problem::order_not_ready()),
        Cancellation::TooLate => Err(Problem::illegal_state()),
    }
}
