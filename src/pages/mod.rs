//! Pages. They are static: nothing in them depends on who asks, or on how a sale stands.

use actix_web::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS};
use actix_web::web::{ServiceConfig, get};
use actix_web::{HttpRequest, HttpResponse};

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// What `/static/` holds: name, type, content.
const ASSETS: [(&str, &str, &str); 4] = [
    ("front.js", SCRIPT, include_str!("../../frontend-static/front.js")),
    ("orders.js", SCRIPT, include_str!("../../frontend-static/orders.js")),
    ("sale.js", SCRIPT, include_str!("../../frontend-static/sale.js")),
    ("style.css", STYLE, include_str!("../../frontend-static/style.css")),
];

/// The pages' addresses.
pub fn routes(app: &mut ServiceConfig) {
    app.route("/", get().to(front));
    app.route("/sales/{id}", get().to(sale));
    app.route("/static/{file}", get().to(asset));
    // Browsers ask for it unasked.
    app.route("/favicon.ico", get().to(async || HttpResponse::NoContent().finish()));
}

/// The sales there are.
async fn front() -> HttpResponse {
    file(HTML, include_str!("../../frontend-static/index.html"))
}

/// The page finds out by itself which sale it is about.
async fn sale() -> HttpResponse {
    file(HTML, include_str!("../../frontend-static/sale.html"))
}

async fn asset(request: HttpRequest) -> HttpResponse {
    let name = request.match_info().query("file");
    match ASSETS.iter().find(|(known, ..)| *known == name) {
        Some((_, content_type, content)) => file(content_type, content),
        None => HttpResponse::NotFound().finish(),
    }
}

fn file(content_type: &'static str, content: &'static str) -> HttpResponse {
    HttpResponse::Ok()
        .content_type(content_type)
        .insert_header((CACHE_CONTROL, "public, max-age=60"))
        .insert_header((CONTENT_SECURITY_POLICY, "default-src 'self'; frame-ancestors 'none'; base-uri 'none'"))
        .insert_header((X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .body(content)
}
