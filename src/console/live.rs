//! The live page of a sale. It is empty when it arrives; live.js fills it from `GET /api/v1/admin/sales/{id}/live`.

use actix_web::HttpResponse;
use askama::Template;

use super::frame::{Frame, page};
use super::sales::named_sale;
use crate::http::Ask;

#[derive(Template)]
#[template(path = "console/live.html")]
struct LivePage {
    frame: Frame,
    id: i64,
    product: String,
}

pub async fn show(ask: Ask) -> HttpResponse {
    page(ask, "sales", async |console, caller, frame| {
        let sale = console.sale(named_sale(caller)?).await?.sale;
        Ok(LivePage { frame, id: sale.id.get(), product: sale.product })
    })
    .await
}
