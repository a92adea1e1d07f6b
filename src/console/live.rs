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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_its_stream_and_says_whose_figures_it_shows() {
        let page = LivePage { frame: Frame::of_admin("sales"), id: 7, product: "<Phone>".to_owned() };
        let page = page.render().unwrap();
        assert!(page.contains("data-live=\"/api/v1/admin/sales/7/live\"") && !page.contains("<Phone>"), "{page}");
        assert!(page.contains("the instance that answers") && !page.contains("\"unknown\""), "{page}");
    }
}
