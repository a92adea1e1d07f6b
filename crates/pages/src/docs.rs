//! The API's document in Swagger UI, to read and to try.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};

use super::file::File;
use super::{Kind, Pages};
use seckill_http::Content;
use seckill_http::static_files::{SCRIPT, STYLE};

macro_rules! built {
    ($name:literal) => {
        Content::built(
            include_bytes!(concat!(env!("OUT_DIR"), "/", $name)),
            include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".gz")),
        )
    };
}

pub(super) fn files() -> [(&'static str, File); 2] {
    [
        ("swagger-ui-bundle.js", File::of(SCRIPT, built!("swagger-ui-bundle.js"))),
        ("swagger-ui.css", File::of(STYLE, built!("swagger-ui.css"))),
    ]
}

/// This document as a page, to read and to try
#[utoipa::path(
    get,
    path = "/docs",
    tag = "pages",
    responses((status = 200, description = "The page", body = String, content_type = "text/html; charset=utf-8")),
)]
pub(crate) async fn docs_page(request: HttpRequest, pages: Data<Pages>) -> HttpResponse {
    pages.answer(&request, Kind::Docs, &pages.docs)
}

pub(crate) async fn asset(request: HttpRequest, pages: Data<Pages>) -> HttpResponse {
    let name = request.match_info().query("file");
    match pages.docs_files.iter().find(|(known, _)| *known == name) {
        Some((_, file)) => pages.answer(&request, Kind::Docs, file),
        None => super::not_found(),
    }
}
