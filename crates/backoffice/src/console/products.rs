//! The page of products, for operators.

use actix_web::HttpResponse;
use askama::Template;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::frame::{Frame, page};
use super::{products, show};
use crate::admin::paging::{cut, given};
use crate::api::Ask;
use seckill_domain::sale::Product;

const PRODUCTS_MAX: i64 = 50;

#[derive(Default, Deserialize)]
struct Filter {
    q: Option<String>,
    after: Option<String>,
    name: Option<String>,
}

#[derive(Template)]
#[template(path = "console/products.html")]
struct ProductsPage {
    frame: Frame,
    rows: Vec<Product>,
    q: String,
    edited: Option<Edited>,
    more: Option<String>,
}

struct Edited {
    is_new: bool,
    product: Product,
}

fn encoded(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

pub(crate) async fn list(ask: Ask) -> HttpResponse {
    page(ask, "sales", async |office, caller, frame| {
        let filter = caller.query::<Filter>()?;
        let (q, name) = (given(&filter.q), given(&filter.name));
        let mut products = office.products(&caller.account, filter.after.as_deref(), q, PRODUCTS_MAX + 1).await?;
        let last = cut(&mut products, PRODUCTS_MAX).map(|last| encoded(&last.name));
        let edited = match name {
            None => None,
            Some(name) => {
                let found = office.product_named(&caller.account, name).await?;
                let is_new = found.is_none();
                let empty = Product { id: 0, name: name.to_owned(), description: String::new(), picture: None };
                Some(Edited { is_new, product: found.unwrap_or(empty) })
            }
        };
        let q = q.unwrap_or_default().to_owned();
        let more = last.map(|last| format!("/admin/products?q={}&after={last}", encoded(&q)));
        Ok(ProductsPage { frame, rows: products, q, edited, more })
    })
    .await
}
