//! Orders of all buyers: searching, exporting and refunding them.

use actix_web::HttpResponse;
use actix_web::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use actix_web::web::{Bytes, Data};
use futures_util::Stream;
use futures_util::stream::unfold;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Answer, NotReadOne, NotReadSome, NotReadSomeGuarded};
use crate::admin::AdminError;
use crate::admin::order_lines::csv;
use crate::admin::orders::{Export, FoundOrders, OrderDetails, OrderQuery};
use crate::admin::paging::given;
use crate::api::{Ask, Caller};
use seckill_domain::ids::{Invalid, OrderId};
use seckill_domain::payment::{RefundId, RefundStatus};
use seckill_http::AppState;
use seckill_http::codes::problems;
use seckill_http::head_requests::was_head;
use seckill_money::api::Money;

/// Why an order is refunded.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RefundOrder {
    /// One line, which is kept with the refund and in the audit log.
    #[schema(
        max_length = 500,
        pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]*[^\\s\\x00-\\x1F\\x7F-\\x9F][^\\x00-\\x1F\\x7F-\\x9F]*$"
    )]
    reason: String,
}

/// The refund that is under way.
#[derive(Serialize, ToSchema)]
struct OrderRefund {
    refund_id: RefundId,
    status: RefundStatus,
}

problems! {
    NotRefunded: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, IllegalState, BodyTooLarge,
    TemporarilyUnavailable
}

/// Orders of all buyers, newest first
///
/// All conditions must hold. `number` is what buyers see of an order's id. Operators see whose orders they are; their reading beyond the first 100 is a line of the audit log. Others
/// find the orders of a buyer whose id they know. While pages are read, no order that was there at the first page is missed or comes twice, whatever
/// arrives meanwhile.
#[utoipa::path(
    get,
    path = "/api/v1/admin/orders",
    params(OrderQuery),
    responses((status = 200, description = "A page of orders", body = FoundOrders), NotReadSome),
)]
pub(super) async fn search_orders(ask: Ask) -> Answer {
    ask.answer(async |office, caller| office.orders(&caller.account, &caller.query::<OrderQuery>()?).await).await
}

/// Orders of all buyers, as a file
///
/// For operators. CSV (RFC 4180) with a line of column names: all orders of one moment, newest first. A cell that a
/// spreadsheet would take for a formula begins with an apostrophe. A file that takes longer than five minutes, or that is not complete
/// for another reason, ends with a connection that is broken off; `before` with its last whole order gives the rest. The audit log has
/// each export; an instance makes one at a time. `order` and `limit` have no meaning here.
#[utoipa::path(
    get,
    path = "/api/v1/admin/orders.csv",
    params(OrderQuery),
    responses(
        (
            status = 200, description = "The file", body = String, content_type = "text/csv; charset=utf-8",
            headers(
                ("Content-Disposition" = String, description = "The file's name"),
            ),
        ),
        NotReadSomeGuarded,
    ),
)]
pub(super) async fn export_orders(ask: Ask) -> Answer {
    let (app_state, is_head) = (ask.app_state.clone(), was_head(&ask.request));
    let export = ask.act(async move |office, caller| {
        let query = caller.query::<OrderQuery>()?;
        Ok((office.export_orders(&caller.account, &query, is_head).await?, query.sale))
    });
    let (export, sale) = export.await?;
    let file = given(&sale).map_or_else(|| "orders.csv".to_owned(), |sale| format!("sale-{sale}-orders.csv"));
    let lines = lines(export, app_state);
    Ok(HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, "text/csv; charset=utf-8"))
        .insert_header((CONTENT_DISPOSITION, format!("attachment; filename=\"{file}\"")))
        .streaming(lines))
}

/// The lines of an export, a piece at a time. Each piece is read in the line of the admin API, so that an export gives way as all reads
/// do; none is read before its reader has taken the one before.
fn lines(export: Option<Export>, app_state: Data<AppState>) -> impl Stream<Item = Result<Bytes, actix_web::Error>> {
    unfold((export, true), move |(export, is_first)| {
        let app_state = app_state.clone();
        async move {
            let mut export = export?;
            let read = async move {
                let orders = export.next_piece().await?;
                Ok::<_, AdminError>((export, orders))
            };
            let lines = match app_state.bulkheads.admin.run(read).await {
                // Even without orders, a file has its columns.
                Ok((_, orders)) if orders.is_empty() && !is_first => return None,
                Ok((export, orders)) => {
                    csv(is_first, &orders).map(|lines| (lines, export)).map_err(|error| error.to_string())
                }
                Err(problem) => Err(problem.to_string()),
            };
            match lines {
                Ok((lines, export)) => Some((Ok(Bytes::from(lines)), (Some(export), false))),
                Err(error) => {
                    tracing::warn!(error, "export of orders broken off");
                    let error = actix_web::error::ErrorServiceUnavailable(error);
                    Some((Err(error), (None, false)))
                }
            }
        }
    })
}

/// One order of any buyer, with its history
///
/// For operators also with its buyer, payments, refunds, and messages.
#[utoipa::path(
    get,
    path = "/api/v1/admin/orders/{id}",
    params(("id" = OrderId, Path, description = "The order")),
    responses((status = 200, description = "The order", body = OrderDetails), NotReadOne),
)]
pub(super) async fn show_any_order(ask: Ask) -> Answer {
    ask.answer(async |office, caller| office.order(&caller.account, order_id(caller)?).await).await
}

/// Refund a paid order
///
/// For operators. The refund is sent at the channel's rate, as a buyer's refund is. Asking again returns the same refund.
#[utoipa::path(
    post,
    path = "/api/v1/admin/orders/{id}/refunds",
    params(("id" = OrderId, Path, description = "The order")),
    request_body = RefundOrder,
    responses((status = 202, description = "The refund is under way", body = OrderRefund), NotRefunded),
)]
pub(super) async fn refund_any_order(ask: Ask, money: Data<Money>) -> Answer {
    let refund = ask.act(async move |office, caller| {
        let order = order_id(caller)?;
        let RefundOrder { reason } = caller.body()?;
        office.refund_order(&caller.account, &money.service, order, &reason).await
    });
    let (refund_id, status) = refund.await?;
    Ok(HttpResponse::Accepted().json(OrderRefund { refund_id, status }))
}

fn order_id(caller: &Caller) -> Result<OrderId, Invalid> {
    caller.uuid("order id").map(OrderId)
}
