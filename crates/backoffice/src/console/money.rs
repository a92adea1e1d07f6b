//! The pages of payments and refunds, for operators.

use actix_web::HttpResponse;
use askama::Template;
use strum::IntoEnumIterator;

use super::frame::{Frame, address, page};
use super::show;
use crate::admin::money::{ConflictPage, ConflictQuery, MoneyPage, PaymentQuery, RefundQuery};
use crate::admin::paging::given;
use crate::api::Ask;
use seckill_domain::payment::{PaymentStatus, RefundStatus};

#[derive(Template)]
#[template(path = "console/payments.html")]
struct PaymentsPage {
    frame: Frame,
    tab: &'static str,
    list: MoneyPage,
    conflicts: ConflictPage,
    statuses: Vec<&'static str>,
    chosen: Option<String>,
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "console/refunds.html")]
struct RefundsPage {
    frame: Frame,
    tab: &'static str,
    list: MoneyPage,
    statuses: Vec<&'static str>,
    chosen: Option<String>,
    next: Option<String>,
}

pub(crate) async fn payments(ask: Ask) -> HttpResponse {
    page(ask, "money", async |office, caller, frame| {
        let query = caller.query::<PaymentQuery>()?;
        let list = office.payments(&caller.account, &query).await?;
        // They are read only where there are some.
        let conflicts = match list.figures.set_aside {
            0 => ConflictPage::default(),
            _ => office.conflicts(&caller.account, &ConflictQuery::default()).await?,
        };
        let chosen = given(&query.status).map(str::to_owned);
        let next = list.next.map(|last| address("/admin/payments", &[("status", &query.status)], Some(&last)));
        let statuses = PaymentStatus::iter().map(Into::into).collect();
        Ok(PaymentsPage { frame, tab: "payments", list, conflicts, statuses, chosen, next })
    })
    .await
}

pub(crate) async fn refunds(ask: Ask) -> HttpResponse {
    page(ask, "money", async |office, caller, frame| {
        let query = caller.query::<RefundQuery>()?;
        let list = office.refunds(&caller.account, &query).await?;
        let chosen = given(&query.status).map(str::to_owned);
        let next = list.next.map(|last| address("/admin/refunds", &[("status", &query.status)], Some(&last)));
        let statuses = RefundStatus::iter().map(Into::into).collect();
        Ok(RefundsPage { frame, tab: "refunds", list, statuses, chosen, next })
    })
    .await
}
