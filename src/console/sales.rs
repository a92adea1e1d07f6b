//! The pages of sales: the list, planning one, and all of one.

use std::sync::Arc;

use actix_web::web::{Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use askama::Template;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::frame::{Access, Frame, page};
use super::show;
use crate::admin::AdminError;
use crate::admin::sales::{LapsedLists, SaleDetails, SaleFigures, SaleList, SaleSearch, parse_search};
use crate::domain::ids::{Invalid, SaleId};
use crate::domain::live::LedgerFigures;
use crate::domain::sale::{Sale, SalePhase, SaleStatus};
use crate::http::AppState;

/// Sales on one page of the list.
const SALES_MAX: usize = 50;
/// Products whose names are offered when a sale is planned.
const NAMES_MAX: i64 = 200;

/// What is looked for.
#[derive(Default, Deserialize)]
struct Filter {
    q: Option<String>,
    status: Option<String>,
    before: Option<String>,
}

#[derive(Template)]
#[template(path = "console/sales.html")]
struct SalesPage {
    frame: Frame,
    rows: Vec<SaleRow>,
    q: String,
    status: String,
    /// The address of the next page.
    older: Option<String>,
}

/// A sale as the list shows it.
struct SaleRow {
    id: i64,
    product: String,
    price_cents: i64,
    stock: i64,
    total_stock: i64,
    phase: &'static str,
    starts_at_ms: i64,
    ends_at_ms: i64,
}

impl SaleRow {
    fn new(figures: SaleFigures, now_ms: i64) -> Self {
        let SaleFigures { sale, total_stock, stock } = figures;
        Self {
            id: sale.id.get(),
            phase: sale.phase_at(now_ms).as_str(),
            product: sale.product,
            price_cents: sale.price_cents,
            stock,
            total_stock,
            starts_at_ms: sale.starts_at_ms,
            ends_at_ms: sale.ends_at_ms,
        }
    }
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
    phase: SalePhase,
    /// `None` if counting them takes too long now.
    counted: Option<Arc<LedgerFigures>>,
    /// `None` likewise.
    lapsed: Option<Arc<LapsedLists>>,
}

impl SalePage {
    fn sale(&self) -> &Sale {
        &self.details.figures.sale
    }

    fn is_paused(&self) -> bool {
        self.sale().status == SaleStatus::Paused
    }

    fn is_closed(&self) -> bool {
        self.sale().status == SaleStatus::Closed
    }

    /// Whether the sale was never bought in, as far as is known.
    fn may_be_removed(&self) -> bool {
        self.counted.as_ref().is_some_and(|counted| counted.orders.iter().all(|of| of.orders == 0))
    }
}

/// The search that a page's address asks for. One sale more than is shown says whether there are older ones.
fn search(request: &HttpRequest) -> Result<(Filter, SaleSearch), Invalid> {
    let filter = Query::<Filter>::from_query(request.query_string());
    let filter = filter.map_err(|_| Invalid::new("q, status and before", "must each be given once"))?.into_inner();
    let search = parse_search(None, filter.before.as_deref(), filter.status.as_deref(), filter.q.as_deref())?;
    Ok((filter, SaleSearch { limit: SALES_MAX.cast_signed() as i64 + 1, ..search }))
}

pub async fn list(request: HttpRequest, app_state: Data<AppState>) -> HttpResponse {
    page(request, &app_state, Access::Viewers, "sales", async |console, caller, frame| {
        let (filter, search) = search(&caller.request)?;
        let SaleList { mut sales, now_ms } = console.sales(&search).await?;
        let has_older = sales.len() > SALES_MAX;
        sales.truncate(SALES_MAX);
        let last = sales.last().filter(|_| has_older).map(|last| last.sale.id);
        let (q, status) = (filter.q.unwrap_or_default(), filter.status.unwrap_or_default());
        let rows = sales.into_iter().map(|figures| SaleRow::new(figures, now_ms)).collect();
        Ok(SalesPage { frame, rows, older: last.map(|last| older(&q, &status, last)), q, status })
    })
    .await
}

/// The address of the sales that follow one in the list.
fn older(q: &str, status: &str, last: SaleId) -> String {
    let [q, status] = [q, status].map(|text| utf8_percent_encode(text, NON_ALPHANUMERIC));
    format!("/admin/sales?q={q}&status={status}&before={last}")
}

pub async fn new(request: HttpRequest, app_state: Data<AppState>) -> HttpResponse {
    page(request, &app_state, Access::Operators, "sales", async |console, caller, frame| {
        let products = console.products(&caller.account, None, None, NAMES_MAX).await?;
        Ok(NewSalePage { frame, products: products.into_iter().map(|product| product.name).collect() })
    })
    .await
}

pub async fn show(request: HttpRequest, app_state: Data<AppState>) -> HttpResponse {
    page(request, &app_state, Access::Viewers, "sales", async |console, caller, frame| {
        let id = named_sale(&caller.request)?;
        let details = console.sale(id).await?;
        let (counted, lapsed) = tokio::join!(console.sale_orders(id), console.sale_lapsed(&caller.account, id));
        Ok(SalePage { frame, phase: details.figures.sale.phase_at(details.now_ms), counted, lapsed, details })
    })
    .await
}

/// The sale that the page's address names. An address that can name none is that of no page.
pub fn named_sale(request: &HttpRequest) -> Result<SaleId, AdminError> {
    SaleId::parse(request.match_info().query("id")).map_err(|_| AdminError::Unknown("sale"))
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;
    use chrono::DateTime;

    use super::*;
    use crate::admin::sales::{SalePlan, WaveRow};
    use crate::domain::captcha::CaptchaKind;
    use crate::domain::ids::Units;
    use crate::domain::live::{OrderFigures, OutboxFigures};
    use crate::domain::order::OrderStatus;
    use crate::domain::shards::ShardCount;

    fn figures() -> SaleFigures {
        let sale = Sale {
            id: SaleId::from_db(7),
            product_id: 1,
            product: "<Phone>".into(),
            description: String::new(),
            picture: None,
            price_cents: 9_900,
            per_user: Units::ONE,
            min_level: 0,
            captcha: CaptchaKind::None,
            unlimited: false,
            shards: ShardCount::ONE,
            starts_at_ms: 0,
            ends_at_ms: 10_000,
            pay_within_ms: 900_000,
            status: SaleStatus::Open,
            purchase_key: "secret-key".into(),
            waiting_key: "waiting-key".into(),
            waves: Vec::new(),
        };
        SaleFigures { sale, total_stock: 10, stock: 8 }
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
        let plan = SalePlan { refund_returns_stock: true, created_at: DateTime::UNIX_EPOCH, waves: vec![wave] };
        let details = SaleDetails { figures: figures(), plan, now_ms: 5_000 };
        let page = SalePage {
            frame: Frame::of_admin("sales"),
            phase: SalePhase::Open,
            details,
            counted: counted.map(Arc::new),
            lapsed: lapsed.map(Arc::new),
        };
        page.render().unwrap()
    }

    #[test]
    fn the_list_escapes_names_and_keeps_the_filter_on_the_next_page() {
        let page = SalesPage {
            frame: Frame::of_admin("sales"),
            rows: vec![SaleRow::new(figures(), 5_000)],
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
    fn a_sale_that_sells_is_changed_by_the_addresses_of_the_api_and_shows_no_key() {
        let none = || Some(LapsedLists::default());
        let page = sale_page(Some(counted(2)), none());
        for shown in [
            "data-api=\"/api/v1/admin/sales/7/status\" data-method=\"PUT\"",
            "data-api=\"/api/v1/admin/sales/7/stock\" data-method=\"POST\"",
            "href=\"/sales/7\"",
            "href=\"/admin/sales/7/live\"",
            "value=\"paused\"",
        ] {
            assert!(page.contains(shown), "{shown}: {page}");
        }
        assert!(!page.contains("secret-key") && !page.contains("waiting-key"), "{page}");
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

    #[test]
    fn searches_come_from_the_address() {
        let of = |query: &str| search(&TestRequest::with_uri(&format!("/admin/sales?{query}")).to_http_request());
        let (filter, found) = of("q=%20phone&status=&before=9").unwrap();
        assert_eq!((filter.q.as_deref(), found.text.as_deref()), (Some(" phone"), Some("phone")));
        assert_eq!((found.before, found.phase, found.limit), (Some(SaleId::from_db(9)), None, 51));
        assert!(of("status=closed").is_err() && of("q=a&q=b").is_err());
    }
}
