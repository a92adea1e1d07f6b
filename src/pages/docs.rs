//! The API's document in Swagger UI, to read and to try.

use std::sync::Arc;

use actix_web::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use utoipa_swagger_ui::Config;

use super::{Kind, Pages};

/// The files of Swagger UI that the page uses.
const FILES: [&str; 2] = ["swagger-ui-bundle.js", "swagger-ui.css"];

/// This document as a page, to read and to try
#[utoipa::path(
    get,
    path = "/docs",
    operation_id = "docs_page",
    tag = "pages",
    responses((status = 200, description = "The page", body = String, content_type = "text/html; charset=utf-8")),
)]
pub async fn page(request: HttpRequest, pages: Data<Pages>) -> HttpResponse {
    pages.answer(&request, Kind::Docs, &pages.docs)
}

pub async fn asset(request: HttpRequest) -> HttpResponse {
    let name = request.match_info().query("file");
    let file = FILES.contains(&name).then(|| utoipa_swagger_ui::serve(name, Arc::new(Config::default())));
    match file {
        Some(Ok(Some(found))) => HttpResponse::Ok()
            .content_type(found.content_type)
            .insert_header((CACHE_CONTROL, "public, max-age=3600"))
            .insert_header((X_CONTENT_TYPE_OPTIONS, "nosniff"))
            .body(found.bytes.into_owned()),
        _ => super::not_found(),
    }
}
