//! The pages of payments and refunds, for operators.

use actix_web::HttpResponse;
use askama::Template;
use strum::IntoEnumIterator;

use super::frame::{Frame, page};
use super::{money, show};
use crate::admin::money::{ConflictPage, ConflictQuery, MoneyPage, MoneyRow, PaymentQuery, RefundQuery};
use crate::admin::paging::given;
use crate::domain::payment::{PaymentStatus, RefundStatus};
use crate::http::Ask;
use crate::pages::price;

#[derive(Template)]
#[template(path = "console/payments.html")]
struct PaymentsPage {
    frame: Frame,
    tab: &'static str,
    list: MoneyPage,
    conflicts: ConflictPage,
    /// The status whose payments are shown.
    chosen: Option<String>,
    /// The address of the next page.
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "console/refunds.html")]
struct RefundsPage {
    frame: Frame,
    tab: &'static str,
    list: MoneyPage,
    chosen: Option<String>,
    next: Option<String>,
}

impl PaymentsPage {
    fn statuses(&self) -> impl Iterator<Item = &'static str> {
        PaymentStatus::iter().map(<&'static str>::from)
    }

    fn is_chosen(&self, status: &str) -> bool {
        self.chosen.as_deref() == Some(status)
    }
}

impl RefundsPage {
    fn statuses(&self) -> impl Iterator<Item = &'static str> {
        RefundStatus::iter().map(<&'static str>::from)
    }

    fn is_chosen(&self, status: &str) -> bool {
        self.chosen.as_deref() == Some(status)
    }
}

/// The amount of a payment or refund, in its own currency.
pub fn amount(row: &MoneyRow) -> String {
    format!("{} {}", row.currency, price(row.amount_cents, &row.currency))
}

/// The address of the next page. The status was read, so it is one word.
fn next(path: &str, page: &MoneyPage, chosen: &Option<String>) -> Option<String> {
    let status = chosen.as_ref().map(|status| format!("status={status}&")).unwrap_or_default();
    page.next.map(|last| format!("{path}?{status}before={last}"))
}

pub async fn payments(ask: Ask) -> HttpResponse {
    page(ask, "money", async |console, caller, frame| {
        let query = caller.query::<PaymentQuery>()?;
        let list = console.payments(&caller.account, &query).await?;
        // They are read only where there are some.
        let conflicts = match list.figures.set_aside {
            0 => ConflictPage::default(),
            _ => console.conflicts(&caller.account, &ConflictQuery::default()).await?,
        };
        let chosen = given(&query.status).map(str::to_owned);
        let next = next("/admin/payments", &list, &chosen);
        Ok(PaymentsPage { frame, tab: "payments", list, conflicts, chosen, next })
    })
    .await
}

pub async fn refunds(ask: Ask) -> HttpResponse {
    page(ask, "money", async |console, caller, frame| {
        let query = caller.query::<RefundQuery>()?;
        let list = console.refunds(&caller.account, &query).await?;
        let chosen = given(&query.status).map(str::to_owned);
        let next = next("/admin/refunds", &list, &chosen);
        Ok(RefundsPage { frame, tab: "refunds", list, chosen, next })
    })
    .await
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use uuid::Uuid;

    use super::*;
    use crate::admin::money::{MoneyFigures, SetAside};

    fn list(status: &str, set_aside: i64) -> MoneyPage {
        let row = MoneyRow {
            id: Uuid::nil(),
            order_id: Uuid::nil(),
            channel: "sandbox".to_owned(),
            amount_cents: 1_999,
            currency: "JPY".to_owned(),
            status: status.to_owned(),
            created_at: DateTime::UNIX_EPOCH,
            ended_at: None,
            note: Some("<i>note".to_owned()),
        };
        let figures = MoneyFigures { created: 0, oldest_s: 0, under_way: 0, refunds: 0, refunds_failed: 0, set_aside };
        MoneyPage { figures, rows: vec![row], next: Some(Uuid::nil()) }
    }

    #[test]
    fn a_refused_refund_can_be_sent_again_and_no_other() {
        for (status, shown) in [("failed", true), ("requested", false), ("succeeded", false)] {
            let (list, chosen) = (list(status, 0), Some(status.to_owned()));
            let next = next("/admin/refunds", &list, &chosen);
            let page = RefundsPage { frame: Frame::of_admin("money"), tab: "refunds", list, chosen, next };
            let page = page.render().unwrap();
            assert_eq!(
                page.contains("/api/v1/admin/refunds/00000000-0000-0000-0000-000000000000/retry"),
                shown,
                "{page}"
            );
            assert!(page.contains("JPY 1999") && !page.contains("<i>note"), "{page}");
            let next = format!("/admin/refunds?status={status}&#38;before=00000000");
            assert!(page.contains(&next), "{page}");
        }
    }

    #[test]
    fn what_a_channel_wrote_is_shown_as_text() {
        let callback = SetAside {
            id: 3,
            at: DateTime::UNIX_EPOCH,
            channel: "sandbox".to_owned(),
            message_id: "msg_1".to_owned(),
            problem: "another amount".to_owned(),
            body: "{\"a\": \"<script>alert(1)</script>\"}".to_owned(),
        };
        let conflicts = ConflictPage { conflicts: vec![callback], next_before: None };
        let list = list("succeeded", 1);
        let page = PaymentsPage {
            frame: Frame::of_admin("money"),
            tab: "payments",
            list,
            conflicts,
            chosen: None,
            next: None,
        };
        let page = page.render().unwrap();
        assert!(!page.contains("<script>alert"), "{page}");
        assert!(page.contains("data-api=\"/api/v1/admin/payments/conflicts/3/settle\""), "{page}");
    }
}
