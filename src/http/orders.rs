//! A buyer's own orders.

use actix_web::web::{Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use serde::Deserialize;

use super::extract::order_id;
use super::problem::Problem;
use super::{Counter, Reception};
use crate::domain::ids::SaleId;
use crate::domain::order::{Order, OrderStatus};
use crate::ledger::orders::OrderFilter;

/// A buyer's orders that are listed at most.
const LIST_MAX: i64 = 100;

#[derive(Deserialize)]
pub struct ListQuery {
    sale_id: Option<String>,
}

pub async fn show(
    request: HttpRequest,
    counter: Data<Counter>,
    reception: Data<Reception>,
) -> Result<HttpResponse, Problem> {
    Ok(HttpResponse::Ok().json(own_order(&request, &counter, &reception).await?))
}

pub async fn list(
    request: HttpRequest,
    query: Query<ListQuery>,
    counter: Data<Counter>,
    reception: Data<Reception>,
) -> Result<HttpResponse, Problem> {
    let buyer = reception.tokens.buyer(&request, counter.till.catalog.clock.now_ms())?;
    let sale = query.sale_id.as_deref().map(SaleId::parse).transpose()?;
    let filter = OrderFilter { sale, user: Some(buyer.user.to_string()), limit: LIST_MAX, ..OrderFilter::default() };
    let orders: Vec<Order> = counter.till.ledger.orders(&filter).await?.into_iter().map(|owned| owned.order).collect();
    Ok(HttpResponse::Ok().json(orders))
}

pub async fn cancel(
    request: HttpRequest,
    counter: Data<Counter>,
    reception: Data<Reception>,
) -> Result<HttpResponse, Problem> {
    let order = own_order(&request, &counter, &reception).await?;
    if order.status == OrderStatus::Accepted {
        return Err(Problem::order_not_ready());
    }
    let buyer = reception.tokens.buyer(&request, counter.till.catalog.clock.now_ms())?;
    if !counter.till.ledger.cancel_by_buyer(order.order_id, buyer.user.as_str()).await? {
        return Err(Problem::illegal_state());
    }
    counter.till.committer.ring();
    Ok(HttpResponse::Ok().json(own_order(&request, &counter, &reception).await?))
}

/// The order that the path names, if it is the caller's. Another's is not told from none.
async fn own_order(request: &HttpRequest, counter: &Counter, reception: &Reception) -> Result<Order, Problem> {
    let buyer = reception.tokens.buyer(request, counter.till.catalog.clock.now_ms())?;
    let found = counter.till.ledger.order(order_id(request)?).await?;
    let own = found.filter(|found| found.user_id == buyer.user.as_str());
    own.map(|found| found.order).ok_or(Problem::unknown_order())
}
