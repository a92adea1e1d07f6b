//! A buyer's own orders.

use actix_web::HttpResponse;
use actix_web::http::header;
use actix_web::web::Query;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Call;
use crate::sale::cancellations::Cancellation;
use seckill_domain::ids::{OrderId, SaleId};
use seckill_domain::order::Order;
use seckill_http::Answer;
use seckill_http::codes::{Code, problems};
use seckill_http::extract::{order_id, parse_order_id};
use seckill_http::problem::Problem;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Only orders of this sale.
    #[param(value_type = Option<SaleId>, nullable = false)]
    sale_id: Option<String>,
    /// The last order of the page before: one of the buyer's own.
    #[param(value_type = Option<OrderId>, nullable = false)]
    after: Option<String>,
}

problems!(NotShown: InvalidRequest, Unauthenticated, UnknownOrder, QuotaExceeded, TemporarilyUnavailable);
problems! {
    NotCancelled: InvalidRequest, Unauthenticated, UnknownOrder, OrderNotReady, IllegalState, TemporarilyUnavailable
}

/// One of the buyer's orders
#[utoipa::path(
    get,
    path = "/api/v1/orders/{id}",
    tag = "orders",
    security(("buyer" = [])),
    params(("id" = OrderId, Path, description = "The order")),
    responses((status = 200, description = "The order", body = Order), NotShown),
)]
pub(super) async fn show_order(Call { request, thread, app_state }: Call) -> Answer {
    let buyer = app_state.buyer(request.head(), thread.catalog.clock.now_ms())?;
    app_state.bulkheads.count_read(&buyer.user)?;
    let order = thread.order_of(&buyer.user, order_id(&request)?).await?;
    Ok(HttpResponse::Ok().json(order.ok_or(Code::UnknownOrder)?))
}

/// The buyer's orders, newest first
///
/// A purchase is listed at once: as `accepted` until its order has been created. When there are more orders than one page
/// has, the answer's `Link` header has the address of the next page.
#[utoipa::path(
    get,
    path = "/api/v1/orders",
    tag = "orders",
    security(("buyer" = [])),
    params(ListQuery),
    responses((status = 200, description = "A page of at most 100", body = [Order]), NotShown),
)]
pub(super) async fn list_orders(Call { request, thread, app_state }: Call) -> Answer {
    let buyer = app_state.buyer(request.head(), thread.catalog.clock.now_ms())?;
    app_state.bulkheads.count_read(&buyer.user)?;
    let query = Query::<ListQuery>::from_query(request.query_string()).map_err(Problem::invalid)?;
    let sale = query.sale_id.as_deref().map(SaleId::parse).transpose()?;
    let after = query.after.as_deref().map(parse_order_id).transpose()?;
    if let Some(after) = after
        && thread.order_of(&buyer.user, after).await?.is_none()
    {
        return Err(Code::UnknownOrder.into());
    }
    let page = async move { thread.orders_of(&buyer.user, sale, after).await };
    let page = app_state.bulkheads.orders.run(page).await?;
    let mut answer = HttpResponse::Ok();
    if let (true, Some(last)) = (page.more, page.orders.last()) {
        let sale = sale.map(|sale| format!("sale_id={sale}&")).unwrap_or_default();
        answer.insert_header((header::LINK, format!("</api/v1/orders?{sale}after={}>; rel=\"next\"", last.order_id)));
    }
    Ok(answer.json(page.orders))
}

/// Cancel an order that is not yet paid
#[utoipa::path(
    post,
    path = "/api/v1/orders/{id}/cancel",
    tag = "orders",
    security(("buyer" = [])),
    params(("id" = OrderId, Path, description = "The order")),
    responses((status = 200, description = "The order is cancelled", body = Order), NotCancelled),
)]
pub(super) async fn cancel_order(Call { request, thread, app_state }: Call) -> Answer {
    let buyer = app_state.buyer(request.head(), thread.catalog.clock.now_ms())?;
    let order = order_id(&request)?;
    let cancelled = match thread.cancellations.cancel(order, &buyer.user).await? {
        Some(cancelled) => cancelled,
        None => {
            let cancel = async move { thread.cancel(&buyer.user, order).await };
            app_state.bulkheads.cancellations.run(cancel).await?
        }
    };
    match cancelled {
        Cancellation::Cancelled(order) => Ok(HttpResponse::Ok().json(order)),
        Cancellation::Unknown => Err(Code::UnknownOrder.into()),
        Cancellation::NotReady => Err(Code::OrderNotReady.into()),
        Cancellation::TooLate => Err(Code::IllegalState.into()),
    }
}
