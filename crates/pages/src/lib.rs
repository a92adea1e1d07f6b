//! The pages. They are static: they show the terms of sales, and depend neither on the visitor nor on a sale's state. The service
//! serves them from memory, at the same addresses as a published bundle.

pub mod assets;
pub mod bundle;
mod docs;
mod file;
mod folder;
mod look;
mod offer;
mod pictures;
mod render;
mod served;
mod show;

use actix_web::http::header::{ACCEPT, RETRY_AFTER};
use actix_web::web::{Data, ServiceConfig, get, resource};
use actix_web::{HttpRequest, HttpResponse, Route};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

pub use self::look::{BadLogo, Look};
use self::pictures::NoPicture;
pub use self::render::{PageError, Settings};
pub use self::served::Pages;
use seckill_buying::sale::catalog::NEWEST_MAX;
use seckill_buying::sale::thread_state::ThreadState;
use seckill_domain::ids::SaleId;
use seckill_domain::picture::PictureFile;
use seckill_http::file_headers::Kind;

const FRONT_SALES_MAX: usize = NEWEST_MAX;

#[derive(OpenApi)]
#[openapi(paths(front_page, sale_page, orders_page, docs::docs_page), tags((name = "pages", description = "Pages for visitors")))]
struct Addresses;

pub fn document() -> Document {
    Addresses::openapi()
}

/// The pages' addresses; `unsupported` answers the methods that they do not support.
pub fn routes(unsupported: fn() -> Route) -> impl FnOnce(&mut ServiceConfig) {
    move |app| {
        // In the bundle a page is a folder, so its address may end with a slash.
        let mut at = |path: &str, route: Route| {
            let folder = format!("{}/", path.trim_end_matches('/'));
            app.service(resource(vec![path, &folder]).route(route).default_service(unsupported()));
        };
        at("/", get().to(front_page));
        at("/sales/{id}", get().to(sale_page));
        at("/orders", get().to(orders_page));
        at("/docs", get().to(docs::docs_page));
        let mut files = |path: &str, route: Route| {
            app.service(resource(path).route(route).default_service(unsupported()));
        };
        files("/docs/{file}", get().to(docs::asset));
        files("/assets/{file}", get().to(asset));
        files("/pictures/{file}", get().to(picture));
        // Browsers request this for every site.
        files("/favicon.ico", get().to(async || HttpResponse::NoContent().finish()));
    }
}

/// The page for a browser at an unknown address; `None` for programs, and for addresses of the API.
pub fn missing(request: &HttpRequest) -> Option<HttpResponse> {
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let wants_page = accept.contains("text/html") && !request.path().starts_with("/api/");
    let pages = request.app_data::<Data<Pages>>().filter(|_| wants_page)?;
    Some(pages.no_page())
}

fn not_found() -> HttpResponse {
    HttpResponse::NotFound().finish()
}

fn unavailable() -> HttpResponse {
    HttpResponse::ServiceUnavailable()
        .insert_header((RETRY_AFTER, "1"))
        .content_type("text/plain; charset=utf-8")
        .body("This page cannot be read now. Please try again shortly.\n")
}

/// The page of all sales
#[utoipa::path(
    get,
    path = "/",
    tag = "pages",
    responses((
        status = 200, description = "The page", body = String, content_type = "text/html; charset=utf-8",
        headers(("ETag" = String, description = "Changes with the page")),
    )),
)]
async fn front_page(request: HttpRequest, pages: Data<Pages>, thread: Data<ThreadState>) -> HttpResponse {
    let page = pages.front(thread.catalog.newest());
    pages.answer_made(&request, page)
}

/// A sale's page
#[utoipa::path(
    get,
    path = "/sales/{id}",
    tag = "pages",
    params(("id" = String, Path, description = "The sale")),
    responses(
        (
            status = 200, description = "The page", body = String, content_type = "text/html; charset=utf-8",
            headers(("ETag" = String, description = "Changes with the page")),
        ),
        (status = 404, description = "There is no such sale", body = String, content_type = "text/html; charset=utf-8"),
        (
            status = 503, description = "The sale cannot be read now", body = String, content_type = "text/plain; charset=utf-8",
            headers(("Retry-After" = String, description = "Seconds")),
        ),
    ),
)]
async fn sale_page(request: HttpRequest, pages: Data<Pages>, thread: Data<ThreadState>) -> HttpResponse {
    let Ok(id) = SaleId::parse(request.match_info().query("id")) else { return pages.no_page() };
    match thread.catalog.sale(id).await {
        Ok(Some(sale)) => pages.answer_made(&request, pages.sale(sale).await),
        Ok(None) => pages.no_page(),
        Err(error) => {
            tracing::warn!(%error, sale = %id, "sale not read for its page");
            unavailable()
        }
    }
}

/// The page of a buyer's own orders
#[utoipa::path(
    get,
    path = "/orders",
    tag = "pages",
    responses((status = 200, description = "The page", body = String, content_type = "text/html; charset=utf-8")),
)]
async fn orders_page(request: HttpRequest, pages: Data<Pages>) -> HttpResponse {
    pages.answer(&request, Kind::Page, &pages.orders)
}

async fn asset(request: HttpRequest, pages: Data<Pages>) -> HttpResponse {
    match pages.asset(request.path()) {
        Some(file) => pages.answer(&request, Kind::Hashed, file),
        None => not_found(),
    }
}

async fn picture(request: HttpRequest, pages: Data<Pages>, thread: Data<ThreadState>) -> HttpResponse {
    let Some(file) = PictureFile::parse(request.match_info().query("file")) else { return not_found() };
    match pages.pictures.read(file, &thread).await {
        Ok(picture) => pages.answer(&request, Kind::Hashed, &picture),
        Err(NoPicture::Unknown) => not_found(),
        Err(NoPicture::Busy) => unavailable(),
    }
}
