//! The pages of orders: the search, and the whole of one order.

use actix_web::HttpResponse;
use askama::Template;
use strum::VariantArray;

use super::frame::{Frame, address, page};
use super::show;
use crate::admin::AdminError;
use crate::admin::orders::{FoundOrders, ListedOrder, OrderDetails, OrderQuery};
use crate::admin::paging::given;
use crate::api::Ask;
use seckill_domain::ids::OrderId;
use seckill_domain::order::OrderStatus;

#[derive(Template)]
#[template(path = "console/orders.html")]
struct OrdersPage {
    frame: Frame,
    query: OrderQuery,
    statuses: Vec<OrderStatus>,
    chosen: Option<String>,
    orders: Vec<ListedOrder>,
    /// Purchases without an order are missing, because reading them took too long.
    lacks_accepted: bool,
    next: Option<String>,
    export: Option<String>,
    wrong: Option<String>,
}

impl OrdersPage {
    fn text<'a>(&self, parameter: &'a Option<String>) -> &'a str {
        given(parameter).unwrap_or_default()
    }
}

#[derive(Template)]
#[template(path = "console/order.html")]
struct OrderPage {
    frame: Frame,
    details: OrderDetails,
}

impl OrderPage {
    fn is_paid(&self) -> bool {
        self.details.order.of.order.status == OrderStatus::Paid
    }

    fn is_accepted(&self) -> bool {
        self.details.order.of.order.status == OrderStatus::Accepted
    }
}

pub(crate) async fn list(ask: Ask) -> HttpResponse {
    page(ask, "orders", async |office, caller, frame| {
        let query = caller.query::<OrderQuery>()?;
        // The problem of a wrong search stands next to its form.
        let (found, wrong) = match office.orders(&caller.account, &query).await {
            Ok(found) => (found, None),
            Err(AdminError::Invalid(invalid)) => {
                let none = FoundOrders { orders: Vec::new(), next: None, lacks_accepted: false };
                (none, Some(format!("The {invalid}.")))
            }
            Err(error) => return Err(error),
        };
        let conditions = [
            ("sale", &query.sale),
            ("product", &query.product),
            ("status", &query.status),
            ("user", &query.user),
            ("number", &query.number),
            ("from_ms", &query.from_ms),
            ("to_ms", &query.to_ms),
        ];
        let next = found.next.map(|last| address("/admin/orders", &conditions, Some(&last)));
        let may_export = frame.may_operate && wrong.is_none() && given(&query.order).is_none();
        let export = may_export.then(|| address("/api/v1/admin/orders.csv", &conditions, None));
        let FoundOrders { orders, lacks_accepted, .. } = found;
        let chosen = given(&query.status).map(str::to_owned);
        let statuses = OrderStatus::VARIANTS.to_vec();
        Ok(OrdersPage { frame, query, statuses, chosen, orders, lacks_accepted, next, export, wrong })
    })
    .await
}

pub(crate) async fn order(ask: Ask) -> HttpResponse {
    page(ask, "orders", async |office, caller, frame| {
        // Without a valid id there is no such order.
        let id = caller.uuid("order").map_err(|_| AdminError::Unknown("order"))?;
        let details = office.order(&caller.account, OrderId(id)).await?;
        Ok(OrderPage { frame, details })
    })
    .await
}
