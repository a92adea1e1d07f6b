//! The pages. They are static: their content depends neither on the visitor nor on the state of a sale.

use actix_web::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS};
use actix_web::web::{ServiceConfig, get, resource};
use actix_web::{HttpRequest, HttpResponse, Route};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

mod docs;

/// Allows only what this service itself serves.
const CONTENT_POLICY: &str = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// The files under `/static/`: name, type, content.
const ASSETS: [(&str, &str, &str); 5] = [
    ("docs.js", SCRIPT, include_str!("../../frontend-static/docs.js")),
    ("front.js", SCRIPT, include_str!("../../frontend-static/front.js")),
    ("orders.js", SCRIPT, include_str!("../../frontend-static/orders.js")),
    ("sale.js", SCRIPT, include_str!("../../frontend-static/sale.js")),
    ("style.css", STYLE, include_str!("../../frontend-static/style.css")),
];

#[derive(OpenApi)]
#[openapi(paths(front, sale, docs::page), tags((name = "pages", description = "Pages for visitors")))]
struct Pages;

/// The pages' part of the API's document.
pub fn document() -> Document {
    Pages::openapi()
}

/// The pages' addresses; `unsupported` answers the methods that they do not support.
pub fn routes(unsupported: fn() -> Route) -> impl FnOnce(&mut ServiceConfig) {
    move |app| {
        let mut at = |path: &str, route: Route| {
            app.service(resource(path).route(route).default_service(unsupported()));
        };
        at("/", get().to(front));
        at("/sales/{id}", get().to(sale));
        at("/docs", get().to(docs::page));
        at("/docs/{file}", get().to(docs::asset));
        at("/static/{file}", get().to(asset));
        // Browsers request this for every site.
        at("/favicon.ico", get().to(async || HttpResponse::NoContent().finish()));
    }
}

/// The page of all sales
#[utoipa::path(
    get,
    path = "/",
    operation_id = "front_page",
    tag = "pages",
    responses((status = 200, description = "The page", body = String, content_type = "text/html; charset=utf-8")),
)]
async fn front() -> HttpResponse {
    file(HTML, CONTENT_POLICY, include_str!("../../frontend-static/index.html"))
}

/// A sale's page
///
/// Its script reads the sale's id from the address.
#[utoipa::path(
    get,
    path = "/sales/{id}",
    operation_id = "sale_page",
    tag = "pages",
    params(("id" = String, Path, description = "The sale")),
    responses((status = 200, description = "The page", body = String, content_type = "text/html; charset=utf-8")),
)]
async fn sale() -> HttpResponse {
    file(HTML, CONTENT_POLICY, include_str!("../../frontend-static/sale.html"))
}

async fn asset(request: HttpRequest) -> HttpResponse {
    let name = request.match_info().query("file");
    match ASSETS.iter().find(|(known, ..)| *known == name) {
        Some((_, content_type, content)) => file(content_type, CONTENT_POLICY, content),
        None => HttpResponse::NotFound().finish(),
    }
}

fn file(content_type: &'static str, policy: &'static str, content: &'static str) -> HttpResponse {
    HttpResponse::Ok()
        .content_type(content_type)
        .insert_header((CACHE_CONTROL, "public, max-age=60"))
        .insert_header((CONTENT_SECURITY_POLICY, policy))
        .insert_header((X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .body(content)
}
