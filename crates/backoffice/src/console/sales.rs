//! The pages of sales: the list, and all of one.

use std::sync::Arc;

use actix_web::HttpResponse;
use askama::Template;

use super::frame::{Frame, address, page};
use super::show;
use crate::admin::AdminError;
use crate::admin::drafts::DraftRow;
use crate::admin::sales::{LapsedLists, ManagedSale, SaleDetails, SaleQuery, SaleSearch};
use crate::admin::shoppers::{Activity, Block};
use crate::api::shoppers::ShopperQuery;
use crate::api::{Ask, Caller};
use seckill_domain::ids::{OrderId, SaleId};
use seckill_domain::live::LedgerFigures;
use seckill_domain::order::OrderStatus;
use seckill_domain::sale::SalePhase;
use seckill_domain::sale_blocks::Shopper;

const SALES_MAX: i64 = 50;

#[derive(Template)]
#[template(path = "console/sales.html")]
struct SalesPage {
    frame: Frame,
    rows: Vec<ManagedSale>,
    drafts: Vec<DraftRow>,
    q: String,
    status: String,
    older: Option<String>,
}

#[derive(Template)]
#[template(path = "console/sale.html")]
struct SalePage {
    frame: Frame,
    details: SaleDetails,
    /// `None` if counting them takes too long now.
    counted: Option<Arc<LedgerFigures>>,
    lapsed: Option<Arc<LapsedLists>>,
    /// Empty for accounts that do not see buyers.
    blocks: Vec<Block>,
}

impl SalesPage {
    fn lacks_results(&self) -> bool {
        self.rows.iter().any(|row| row.result.is_none())
    }
}

impl SalePage {
    /// Units that nobody has: without those of purchases that have no order yet, where they are counted.
    fn left(&self) -> i64 {
        self.counted.as_ref().map_or(self.details.sale.stock, |counted| counted.unsold_units())
    }

    fn drifts(&self) -> bool {
        self.counted.as_ref().is_some_and(|counted| counted.drift_alarm)
    }

    fn may_be_removed(&self) -> bool {
        self.counted.as_ref().is_some_and(|counted| counted.orders.iter().all(|of| of.orders == 0))
    }
}

pub(crate) async fn list(ask: Ask) -> HttpResponse {
    page(ask, "sales", async |office, caller, frame| {
        let query = SaleQuery { limit: None, ..caller.query()? };
        let (rows, next) = office.sales(SaleSearch { limit: SALES_MAX, ..query.search()? }).await?;
        let conditions = [("q", &query.q), ("status", &query.status)];
        let older = next.map(|last| address("/admin/sales", &conditions, Some(&last)));
        let (q, status) = (query.q.unwrap_or_default(), query.status.unwrap_or_default());
        let drafts = if frame.may_operate { office.drafts(&caller.account).await? } else { Vec::new() };
        Ok(SalesPage { frame, rows, drafts, older, q, status })
    })
    .await
}

pub(crate) async fn show(ask: Ask) -> HttpResponse {
    page(ask, "sales", async |office, caller, frame| {
        let id = named_sale(caller)?;
        let (counted, lapsed) = tokio::join!(office.counted_sale(id), office.sale_lapsed(&caller.account, id));
        let (details, counted) = counted?;
        let blocks = if frame.may_operate { office.blocks(&caller.account, id).await? } else { Vec::new() };
        Ok(SalePage { frame, counted, lapsed, blocks, details })
    })
    .await
}

/// What a buyer or an address did in a sale.
#[derive(Template)]
#[template(path = "console/activity.html")]
struct ActivityPage {
    frame: Frame,
    sale: ManagedSale,
    shopper: Shopper,
    activity: Activity,
    /// The block's address in the API.
    api: String,
}

pub(crate) async fn activity(ask: Ask) -> HttpResponse {
    page(ask, "sales", async |office, caller, frame| {
        let (id, query) = (named_sale(caller)?, caller.query::<ShopperQuery>()?);
        let shopper = query.shopper()?;
        let activity = office.activity(&caller.account, id, &shopper).await?;
        let of = [("buyer", &query.buyer), ("address", &query.address)];
        let api = address(&format!("/api/v1/admin/sales/{id}/blocks"), &of, None);
        Ok(ActivityPage { frame, sale: office.sale(id).await?.sale, shopper, activity, api })
    })
    .await
}

/// What came of a sale.
#[derive(Template)]
#[template(path = "console/report.html")]
struct ReportPage {
    frame: Frame,
    details: SaleDetails,
    counted: Option<Arc<LedgerFigures>>,
}

pub(crate) async fn report(ask: Ask) -> HttpResponse {
    page(ask, "sales", async |office, caller, frame| {
        let (details, counted) = office.counted_sale(named_sale(caller)?).await?;
        Ok(ReportPage { frame, details, counted })
    })
    .await
}

/// The live page of a sale. It is empty when it arrives; live.js fills it from `GET /api/v1/admin/sales/{id}/live`.
#[derive(Template)]
#[template(path = "console/live.html")]
struct LivePage {
    frame: Frame,
    sale: ManagedSale,
}

pub(crate) async fn live(ask: Ask) -> HttpResponse {
    page(ask, "sales", async |office, caller, frame| {
        let sale = office.sale(named_sale(caller)?).await?.sale;
        Ok(LivePage { frame, sale })
    })
    .await
}

/// The sale that the page's address names. An address that can name none is that of no page.
pub(super) fn named_sale(caller: &Caller) -> Result<SaleId, AdminError> {
    SaleId::parse(caller.part("id")).map_err(|_| AdminError::Unknown("sale"))
}
