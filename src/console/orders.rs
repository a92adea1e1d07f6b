//! The pages of orders: searching them, and one of them with all that belongs to it.

use actix_web::HttpResponse;
use askama::Template;
use strum::VariantArray;

use super::frame::{Frame, page};
use super::{money, show};
use crate::admin::orders::{FoundOrders, OrderDetails, OrderQuery, OwnedOrder};
use crate::admin::paging::given;
use crate::admin::{AdminError, Console};
use crate::domain::account::Account;
use crate::domain::ids::OrderId;
use crate::domain::order::OrderStatus;
use crate::http::Ask;

#[derive(Template)]
#[template(path = "console/orders.html")]
struct OrdersPage {
    frame: Frame,
    query: OrderQuery,
    orders: Vec<OwnedOrder>,
    /// Purchases without an order are missing, because reading them took too long.
    lacks_accepted: bool,
    /// The address of the next page.
    next: Option<String>,
    /// The address of all these orders as a file, for those who may take it away.
    export: Option<String>,
    /// What is wrong with the search.
    wrong: Option<String>,
}

impl OrdersPage {
    fn statuses(&self) -> impl Iterator<Item = &'static str> {
        OrderStatus::VARIANTS.iter().map(|status| status.as_str())
    }

    fn is_chosen(&self, status: &str) -> bool {
        given(&self.query.status) == Some(status)
    }

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
        self.details.order.order.status == OrderStatus::Paid
    }

    fn is_accepted(&self) -> bool {
        self.details.order.order.status == OrderStatus::Accepted
    }
}

pub async fn list(ask: Ask) -> HttpResponse {
    page(ask, "orders", async |console, caller, frame| {
        let query = caller.query::<OrderQuery>()?;
        found(console, &caller.account, frame, query).await
    })
    .await
}

/// The page of a search. What is wrong with a search is said beside its form.
async fn found(
    console: &Console,
    account: &Account,
    frame: Frame,
    query: OrderQuery,
) -> Result<OrdersPage, AdminError> {
    let (found, wrong) = match console.orders(account, &query).await {
        Ok(found) => (found, None),
        Err(AdminError::Invalid(invalid)) => {
            let none = FoundOrders { orders: Vec::new(), next: None, lacks_accepted: false };
            (none, Some(format!("The {invalid}.")))
        }
        Err(error) => return Err(error),
    };
    let next = found.next.map(|last| address("/admin/orders", &query, Some(last)));
    let may_export = frame.may_operate && wrong.is_none() && given(&query.order).is_none();
    let export = may_export.then(|| address("/api/v1/admin/orders.csv", &query, None));
    let FoundOrders { orders, lacks_accepted, .. } = found;
    Ok(OrdersPage { frame, query, orders, lacks_accepted, next, export, wrong })
}

/// The address of the same search elsewhere. The search was read, so its texts have no character that an address must not have.
fn address(path: &str, query: &OrderQuery, before: Option<OrderId>) -> String {
    let conditions = [("sale", &query.sale), ("status", &query.status), ("user", &query.user)];
    let conditions = conditions.into_iter().filter_map(|(name, text)| Some(format!("{name}={}", given(text)?)));
    let all: Vec<String> = conditions.chain(before.map(|before| format!("before={before}"))).collect();
    if all.is_empty() { path.to_owned() } else { format!("{path}?{}", all.join("&")) }
}

pub async fn order(ask: Ask) -> HttpResponse {
    page(ask, "orders", async |console, caller, frame| {
        // What is no id is the id of no order.
        let id = caller.uuid("order").map_err(|_| AdminError::Unknown("order"))?;
        let details = console.order(&caller.account, OrderId(id)).await?;
        Ok(OrderPage { frame, details })
    })
    .await
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::domain::ids::SaleId;
    use crate::domain::order::Order;

    fn owned(status: OrderStatus) -> OwnedOrder {
        let order = Order {
            order_id: OrderId(Uuid::nil()),
            sale_id: SaleId::from_db(7),
            quantity: 1,
            amount_cents: 100,
            status,
            reason: None,
            expires_at_ms: 0,
            created_at_ms: 0,
        };
        OwnedOrder { order, user_id: "<b>ann".to_owned() }
    }

    #[test]
    fn a_search_goes_on_with_its_conditions_and_shows_text_as_text() {
        let query = OrderQuery { sale: Some("7".into()), user: Some(String::new()), ..OrderQuery::default() };
        let next = address("/admin/orders", &query, Some(OrderId(Uuid::nil())));
        assert_eq!(next, "/admin/orders?sale=7&before=00000000-0000-0000-0000-000000000000");
        assert_eq!(address("/admin/orders", &OrderQuery::default(), None), "/admin/orders");
        let query =
            OrderQuery { user: Some("\"><script>".into()), status: Some("paid".into()), ..OrderQuery::default() };
        let orders = vec![owned(OrderStatus::Paid)];
        let (next, wrong) = (Some(next), Some("The user is wrong.".to_owned()));
        let (frame, export, lacks_accepted) = (Frame::of_admin("orders"), None, true);
        let page = OrdersPage { frame, query, orders, lacks_accepted, next, export, wrong };
        let page = page.render().unwrap();
        assert!(!page.contains("<script>") && !page.contains("<b>"), "{page}");
        assert!(page.contains("<option value=\"paid\" selected>") && page.contains("role=\"alert\""), "{page}");
        assert!(page.contains("have no order yet are missing"), "{page}");
    }

    #[test]
    fn only_a_paid_order_can_be_refunded() {
        for (status, shown) in
            [(OrderStatus::Paid, true), (OrderStatus::Refunding, false), (OrderStatus::Accepted, false)]
        {
            let order = owned(status);
            let details = OrderDetails { order, changes: vec![], payments: vec![], refunds: vec![], messages: vec![] };
            let page = OrderPage { frame: Frame::of_admin("orders"), details }.render().unwrap();
            let form = "data-api=\"/api/v1/admin/orders/00000000-0000-0000-0000-000000000000/refunds\"";
            assert_eq!(page.contains(form), shown, "{status}: {page}");
        }
    }
}
