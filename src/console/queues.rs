//! The pages of the outbox and of the outflows, for operators.

use actix_web::HttpResponse;
use askama::Template;

use super::frame::{Frame, page};
use super::show;
use crate::admin::paging::given;
use crate::admin::queues::{ChannelFigures, ItemPage, ItemQuery, OutboxPage, OutboxQuery, ParkedRow};
use crate::domain::message::ParkedKind;
use crate::http::Ask;

#[derive(Template)]
#[template(path = "console/outbox.html")]
struct QueuesPage {
    frame: Frame,
    outbox: OutboxPage,
    /// The kind whose messages are shown.
    chosen: Option<String>,
    /// The address of the next page.
    next: Option<String>,
}

impl QueuesPage {
    /// Whether the message names an order; others name a payment, a wave or a group of orders.
    fn is_about_order(&self, row: &ParkedRow) -> bool {
        !row.user_id.is_empty() && row.kind != ParkedKind::PaymentRequested.as_str()
    }
}

#[derive(Template)]
#[template(path = "console/outflows.html")]
struct OutflowsPage {
    frame: Frame,
    tab: &'static str,
    outflows: Vec<ChannelFigures>,
    parked: ItemPage,
    /// The outflow whose items are shown.
    chosen: Option<String>,
    /// The address of the next page.
    next: Option<String>,
}

pub async fn outbox(ask: Ask) -> HttpResponse {
    page(ask, "queues", async |console, caller, frame| {
        let query = caller.query::<OutboxQuery>()?;
        let outbox = console.outbox(&caller.account, &query).await?;
        let chosen = given(&query.kind).map(str::to_owned);
        let kind = chosen.as_ref().map(|kind| format!("kind={kind}&")).unwrap_or_default();
        let next = outbox.next.map(|last| format!("/admin/outbox?{kind}before={last}"));
        Ok(QueuesPage { frame, outbox, chosen, next })
    })
    .await
}

pub async fn outflows(ask: Ask) -> HttpResponse {
    page(ask, "money", async |console, caller, frame| {
        let query = caller.query::<ItemQuery>()?;
        let outflows = console.outflows(&caller.account).await?;
        let parked = console.parked_items(&caller.account, &query).await?;
        // The name of an outflow has no character that an address must not have.
        let known = given(&query.outflow).filter(|name| outflows.iter().any(|outflow| outflow.name == *name));
        let chosen = known.map(str::to_owned);
        let name = chosen.as_ref().map(|name| format!("outflow={name}&")).unwrap_or_default();
        let next = parked.next_before.map(|last| format!("/admin/outflows?{name}before={last}"));
        Ok(OutflowsPage { frame, tab: "outflows", outflows, parked, chosen, next })
    })
    .await
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::admin::queues::{Backlog, ParkedItem};

    #[test]
    fn a_parked_message_is_shown_as_text_and_can_be_sent_again() {
        let row = ParkedRow {
            id: 17,
            kind: "order_event".to_owned(),
            order_id: Uuid::nil(),
            sale_id: 7,
            user_id: "ann".to_owned(),
            attempts: 8,
            last_error: Some("500 <script>alert(1)</script>".to_owned()),
            created_at: DateTime::UNIX_EPOCH,
            payload: json!({ "status": "<b>paid" }),
        };
        let figures =
            vec![Backlog { kind: "order_event".to_owned(), pending: 2, parked: 1, oldest_s: 90, more: false }];
        let outbox = OutboxPage { figures, parked: vec![row], next: None };
        let page = QueuesPage { frame: Frame::of_admin("queues"), outbox, chosen: None, next: None };
        let page = page.render().unwrap();
        assert!(!page.contains("<script>alert") && !page.contains("<b>paid"), "{page}");
        for shown in [
            "data-api=\"/api/v1/admin/outbox/17/retry\"",
            "<input type=\"hidden\" name=\"kind\" value=\"order_event\">",
            "/admin/orders/00000000-0000-0000-0000-000000000000",
            "1 min 30 s",
        ] {
            assert!(page.contains(shown), "{shown}: {page}");
        }
    }

    #[test]
    fn an_outflow_is_paused_or_resumed_and_its_receiver_shows_no_secret() {
        for (paused, shown) in [(true, "value=\"false\""), (false, "value=\"true\"")] {
            let outflow = ChannelFigures {
                name: "letters".to_owned(),
                rate: 10,
                jitter_ms: 15,
                paused,
                target: "https://shop.example/take?key=secret".to_owned(),
                capacity: 1000,
                waiting: 3,
                oldest_at: Some(DateTime::UNIX_EPOCH),
                parked: 1,
                now: DateTime::UNIX_EPOCH,
            };
            let item = ParkedItem {
                id: Uuid::nil(),
                channel: "letters".to_owned(),
                key: "k".to_owned(),
                seq: 1,
                attempts: 3,
                last_error: Some("422 no".to_owned()),
                created_at: DateTime::UNIX_EPOCH,
                payload: "{\"a\": \"<b>\"}".to_owned(),
            };
            let parked = ItemPage { items: vec![item], next_before: None };
            let (outflows, frame) = (vec![outflow], Frame::of_admin("money"));
            let page = OutflowsPage { frame, tab: "outflows", outflows, parked, chosen: None, next: None };
            let page = page.render().unwrap();
            let hidden = format!("<input type=\"hidden\" name=\"paused\" data-kind=\"boolean\" {shown}>");
            assert!(page.contains(&hidden) && !page.contains("key=secret") && !page.contains("<b>\""), "{page}");
        }
    }
}
