//! Sales and products.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use utoipa::ToSchema;

use crate::sale::thread_state::ThreadState;
use seckill_domain::captcha::CaptchaKind;
use seckill_domain::currency::Currency;
use seckill_domain::ids::{SaleId, Units};
use seckill_domain::picture::Picture;
use seckill_domain::sale::{PlannedWave, Product, Sale, SalePhase};
use seckill_http::Answer;
use seckill_http::codes::{Code, problems};
use seckill_http::extract::{product_id, sale_id};

/// A sale.
#[derive(Serialize, ToSchema)]
#[schema(as = Sale)]
struct SaleView {
    id: SaleId,
    product: ProductName,
    #[schema(minimum = 0)]
    price_cents: i64,
    currency: Currency,
    starts_at_ms: i64,
    ends_at_ms: i64,
    status: SalePhase,
    /// The most units that one buyer may have.
    per_user: Units,
    /// The lowest level of buyer that may buy.
    min_level: i64,
    /// The challenge that a buyer must solve first.
    captcha: CaptchaKind,
    /// Whether no unit is left at the moment. Units that come back are sold again.
    sold_out: bool,
    /// Parts of the stock that go on sale after the start, in order.
    waves: Vec<PlannedWave>,
}

/// The product for sale.
#[derive(Serialize, ToSchema)]
struct ProductName {
    id: i64,
    name: String,
}

/// A product.
#[derive(Serialize, ToSchema)]
#[schema(as = Product)]
struct ProductView {
    id: i64,
    name: String,
    description: String,
    picture: Option<PictureView>,
}

/// A product's picture. Its files are on the server of the pages, and never change.
#[derive(Serialize, ToSchema)]
#[schema(as = Picture)]
struct PictureView {
    /// The address of the small size, at most 480 pixels wide.
    #[schema(example = "/pictures/0123456789abcdef0123456789abcdef-480.jpg")]
    small: String,
    /// The address of the large size, at most 1200 pixels wide.
    #[schema(example = "/pictures/0123456789abcdef0123456789abcdef-1200.jpg")]
    large: String,
    /// The large size's width in pixels.
    width: u32,
    /// The large size's height in pixels.
    height: u32,
    /// A description of the picture, for people who cannot see it.
    alt: String,
}

impl From<Picture> for PictureView {
    fn from(picture: Picture) -> Self {
        let (small, large) = (picture.small_path(), picture.large_path());
        Self { small, large, width: picture.large.width, height: picture.large.height, alt: picture.alt }
    }
}

problems!(NoSale: InvalidRequest, UnknownSale, TemporarilyUnavailable);
problems!(NoProduct: InvalidRequest, NotFound, TemporarilyUnavailable);

/// The newest sales
#[utoipa::path(
    get,
    path = "/api/v1/sales",
    tag = "sales",
    responses((status = 200, description = "At most 100, the newest first", body = [SaleView])),
)]
pub(super) async fn list_sales(thread: Data<ThreadState>) -> HttpResponse {
    let mut sales = Vec::new();
    for sale in thread.catalog.newest() {
        sales.push(view(&sale, &thread).await);
    }
    HttpResponse::Ok().json(sales)
}

/// A sale
#[utoipa::path(
    get,
    path = "/api/v1/sales/{id}",
    tag = "sales",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "The sale", body = SaleView), NoSale),
)]
pub(super) async fn show_sale(request: HttpRequest, thread: Data<ThreadState>) -> Answer {
    let sale = thread.catalog.sale(sale_id(&request)?).await?.ok_or(Code::UnknownSale)?;
    Ok(HttpResponse::Ok().json(view(&sale, &thread).await))
}

/// A product
#[utoipa::path(
    get,
    path = "/api/v1/products/{id}",
    tag = "sales",
    params(("id" = i64, Path, minimum = 1, maximum = 9223372036854775807_i64, description = "The product")),
    responses((status = 200, description = "The product", body = ProductView), NoProduct),
)]
pub(super) async fn show_product(request: HttpRequest, thread: Data<ThreadState>) -> Answer {
    let product = thread.catalog.product(product_id(&request)?).await?;
    let Product { id, name, description, picture } = product.ok_or(Code::NotFound)?;
    Ok(HttpResponse::Ok().json(ProductView { id, name, description, picture: picture.map(PictureView::from) }))
}

async fn view(sale: &Sale, thread: &ThreadState) -> SaleView {
    SaleView {
        id: sale.id,
        product: ProductName { id: sale.product_id, name: sale.product.clone() },
        price_cents: sale.price_cents,
        currency: sale.currency,
        starts_at_ms: sale.starts_at_ms,
        ends_at_ms: sale.ends_at_ms,
        status: sale.phase_at(thread.catalog.clock.now_ms()),
        per_user: sale.per_user,
        min_level: sale.min_level,
        captcha: sale.captcha,
        sold_out: thread.is_sold_out(sale).await,
        waves: sale.waves.clone(),
    }
}
