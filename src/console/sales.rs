//! The pages of sales: the list, planning one, and all of one.

use std::sync::Arc;

use actix_web::HttpResponse;
use askama::Template;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::frame::{Frame, page};
use super::show;
use crate::admin::AdminError;
use crate::admin::paging::cut;
use crate::admin::sales::{LapsedLists, ManagedSale, SaleDetails, SaleQuery, SaleSearch};
use crate::domain::ids::SaleId;
use crate::domain::live::LedgerFigures;
use crate::http::{Ask, Caller};

/// Sales on one page of the list.
const SALES_MAX: i64 = 50;
/// Products whose names are offered when a sale is planned.
const NAMES_MAX: i64 = 200;

#[derive(Template)]
#[template(path = "console/sales.html")]
struct SalesPage {
    frame: Frame,
    rows: Vec<ManagedSale>,
    q: String,
    status: String,
    /// The address of the next page.
    older: Option<String>,
}

#[derive(Template)]
#[template(path = "console/sale-new.html")]
struct NewSalePage {
    frame: Frame,
    products: Vec<String>,
}

#[derive(Template)]
#[template(path = "console/sale.html")]
struct SalePage {
    frame: Frame,
    details: SaleDetails,
    /// `None` if counting them takes too long now.
    counted: Option<Arc<LedgerFigures>>,
    /// The same.
    lapsed: Option<Arc<LapsedLists>>,
}

impl SalePage {
    /// Whether the sale was never bought in, as far as is known.
    fn may_be_removed(&self) -> bool {
        self.counted.as_ref().is_some_and(|counted| counted.orders.iter().all(|of| of.orders == 0))
    }
}

pub async fn list(ask: Ask) -> HttpResponse {
    page(ask, "sales", async |console, caller, frame| {
        let query = SaleQuery { limit: None, ..caller.query()? };
        // One sale more than is shown says whether there are older ones.
        let mut rows = console.sales(&SaleSearch { limit: SALES_MAX + 1, ..query.search()? }).await?;
        let (q, status) = (query.q.unwrap_or_default(), query.status.unwrap_or_default());
        let older = cut(&mut rows, SALES_MAX).map(|last| older(&q, &status, last.id));
        Ok(SalesPage { frame, rows, older, q, status })
    })
    .await
}

/// The address of the sales that follow one in the list.
fn older(q: &str, status: &str, last: SaleId) -> String {
    let [q, status] = [q, status].map(|text| utf8_percent_encode(text, NON_ALPHANUMERIC));
    format!("/admin/sales?q={q}&status={status}&before={last}")
}

pub async fn new(ask: Ask) -> HttpResponse {
    page(ask, "sales", async |console, caller, frame| {
        let products = console.products(&caller.account, None, None, NAMES_MAX).await?;
        Ok(NewSalePage { frame, products: products.into_iter().map(|product| product.name).collect() })
    })
    .await
}

pub async fn show(ask: Ask) -> HttpResponse {
    page(ask, "sales", async |console, caller, frame| {
        let id = named_sale(caller)?;
        let details = console.sale(id).await?;
        let (counted, lapsed) = tokio::join!(console.sale_orders(id), console.sale_lapsed(&caller.account, id));
        Ok(SalePage { frame, counted, lapsed, details })
    })
    .await
}

/// The sale that the page's address names. An address that can name none is that of no page.
pub fn named_sale(caller: &Caller) -> Result<SaleId, AdminError> {
    SaleId::parse(caller.part("id")).map_err(|_| AdminError::Unknown("sale"))
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::admin::sales::WaveRow;
    use crate::domain::captcha::CaptchaKind;
    use crate::domain::ids::Units;
    use crate::domain::live::{OrderFigures, OutboxFigures};
    use crate::domain::order::OrderStatus;
    use crate::domain::sale::{SalePhase, SaleStatus};

    fn sale() -> ManagedSale {
        ManagedSale {
            id: SaleId::from_db(7),
            product: "<Phone>".to_owned(),
            product_id: 1,
            price_cents: 9_900,
            stock: 8,
            total_stock: 10,
            per_user: Units::ONE,
            min_level: 0,
            captcha: CaptchaKind::None,
            shards: 1,
            status: SalePhase::Open,
            starts_at_ms: 0,
            ends_at_ms: 10_000,
            pay_within_s: 900,
            is_closed: false,
        }
    }

    fn counted(orders: i64) -> LedgerFigures {
        LedgerFigures {
            read_at_ms: 0,
            status: SaleStatus::Open,
            total_stock: 10,
            stock: 8,
            held_back_units: 0,
            kept_units: 0,
            orders: vec![OrderFigures { status: OrderStatus::PendingPayment, orders, units: orders }],
            outbox: OutboxFigures { pending: 0, releasing: 0, sent: 0, parked: 0 },
            drift_alarm: false,
        }
    }

    fn sale_page(counted: Option<LedgerFigures>, lapsed: Option<LapsedLists>) -> String {
        let wave = WaveRow { units: 5, due_at: DateTime::UNIX_EPOCH, released_at: None, planned: true };
        let (sale, page) = (sale(), "/sales/7".to_owned());
        let details = SaleDetails { sale, keep_refunded: false, created_at_ms: 0, waves: vec![wave], page };
        let (counted, lapsed) = (counted.map(Arc::new), lapsed.map(Arc::new));
        let page = SalePage { frame: Frame::of_admin("sales"), details, counted, lapsed };
        page.render().unwrap()
    }

    #[test]
    fn the_list_escapes_names_and_keeps_the_filter_on_the_next_page() {
        let page = SalesPage {
            frame: Frame::of_admin("sales"),
            rows: vec![sale()],
            q: "a&b\"".to_owned(),
            status: "open".to_owned(),
            older: Some(older("a&b\"", "open", SaleId::from_db(7))),
        };
        let text = page.render().unwrap();
        assert!(!text.contains("<Phone>") && text.contains("href=\"/admin/sales/7\""), "{text}");
        assert!(text.contains("/admin/sales?q=a%26b%22") && text.contains("value=\"open\" selected"), "{text}");
    }

    const REMOVAL: &str = "data-api=\"/api/v1/admin/sales/7\" data-method=\"DELETE\"";

    #[test]
    fn only_a_sale_without_orders_can_be_removed() {
        let none = || Some(LapsedLists::default());
        let page = sale_page(Some(counted(2)), none());
        assert!(!page.contains(REMOVAL), "it has orders: {page}");
        assert!(sale_page(Some(counted(0)), none()).contains(REMOVAL));
        assert!(page.contains("No hold has lapsed") && !page.contains("takes too long"), "{page}");
    }

    #[test]
    fn a_page_says_what_takes_too_long_to_count_and_shows_the_rest() {
        let page = sale_page(None, None);
        for shown in
            ["Counting the orders takes too long", "Counting the lapsed holds takes too long", "Pause the sale"]
        {
            assert!(page.contains(shown), "{shown}: {page}");
        }
        assert!(!page.contains("No hold has lapsed") && !page.contains(REMOVAL), "{page}");
    }
}
