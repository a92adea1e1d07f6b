//! The pages of the outbox and of the outflows, for operators.

use actix_web::HttpResponse;
use askama::Template;

use super::frame::{Frame, address, page};
use super::show;
use crate::admin::paging::given;
use crate::admin::queues::{ChannelFigures, ItemPage, ItemQuery, OutboxPage, OutboxQuery, ParkedRow};
use crate::api::Ask;
use seckill_domain::message::ParkedKind;

#[derive(Template)]
#[template(path = "console/outbox.html")]
struct QueuesPage {
    frame: Frame,
    outbox: OutboxPage,
    chosen: Option<String>,
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
    chosen: Option<String>,
    next: Option<String>,
}

pub(crate) async fn outbox(ask: Ask) -> HttpResponse {
    page(ask, "queues", async |office, caller, frame| {
        let query = caller.query::<OutboxQuery>()?;
        let outbox = office.outbox(&caller.account, &query).await?;
        let chosen = given(&query.kind).map(str::to_owned);
        let next = outbox.next.map(|last| address("/admin/outbox", &[("kind", &chosen)], Some(&last)));
        Ok(QueuesPage { frame, outbox, chosen, next })
    })
    .await
}

pub(crate) async fn outflows(ask: Ask) -> HttpResponse {
    page(ask, "money", async |office, caller, frame| {
        let query = caller.query::<ItemQuery>()?;
        let outflows = office.outflows(&caller.account).await?;
        let parked = office.parked_items(&caller.account, &query).await?;
        // The name of an outflow has no character that an address must not have.
        let known = given(&query.outflow).filter(|name| outflows.iter().any(|outflow| outflow.name == *name));
        let chosen = known.map(str::to_owned);
        let next = parked.next_before.map(|last| address("/admin/outflows", &[("outflow", &chosen)], Some(&last)));
        Ok(OutflowsPage { frame, tab: "outflows", outflows, parked, chosen, next })
    })
    .await
}
