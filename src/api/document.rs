//! The API's document (OpenAPI), generated from the table of addresses. Tests compare it with the live service.

use actix_web::http::header::{CACHE_CONTROL, ContentType};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::{OpenApi, openapi};

use super::{schema, table};
use seckill_backoffice::api::CookieNames;
use seckill_domain::live::LiveFigures;
use seckill_http::{ApiDocument, AppState, problem};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Seckill",
        description = "A flash sale. Times are milliseconds since the epoch, in fields named `…_ms`; money is in integer \
                       minor units, in fields named `…_cents`. HEAD is answered wherever GET is. Errors are problem details (RFC 9457) with a `code`.",
    ),
    components(schemas(problem::Body, LiveFigures)),
    tags(
        (name = "sales", description = "Sales and products"),
        (name = "buying", description = "Tokens, challenges and purchases"),
        (name = "orders", description = "A buyer's own orders"),
        (name = "payment channels", description = "Callbacks, signed by the channel"),
        (name = "flow control", description = "Permits for other applications"),
        (name = "admin", description = "What the console shows and changes; requires a session"),
        (name = "service", description = "Health and metrics"),
    ),
)]
struct Head;

fn add_security_schemes(api: &mut openapi::OpenApi, cookies: &CookieNames) {
    let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .bearer_format("JWT")
            .description(Some(
                "A buyer's token: claims `sub`, `level` (0 by default), `exp`; `aud` and `iss` where the service requires them",
            ))
            .build();
    let app = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("An application's token, from `seckill app create` or `seckill app rotate`"))
        .build();
    let cookie = ApiKeyValue::with_description(cookies.session, "Set by signing in");
    let csrf = ApiKeyValue::with_description("X-CSRF-Token", "The session's `csrf_token`");
    let components = api.components.get_or_insert_default();
    components.add_security_scheme("buyer", SecurityScheme::Http(bearer));
    components.add_security_scheme("app", SecurityScheme::Http(app));
    components.add_security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
    components.add_security_scheme("csrf", SecurityScheme::ApiKey(ApiKey::Header(csrf)));
}

/// What all addresses of the admin API share: their tag, and the session that they require, with its token where they change something.
fn complete_admin_api(api: &mut openapi::OpenApi) {
    let none: [&str; 0] = [];
    let reads = SecurityRequirement::new("session", none);
    let changes = reads.clone().add("csrf", none);
    for (path, item) in api.paths.paths.iter_mut().filter(|(path, _)| path.starts_with("/api/v1/admin/")) {
        let signs_in = if path == "/api/v1/admin/session" { None } else { Some(changes.clone()) };
        for (operation, requires) in [
            (&mut item.get, Some(reads.clone())),
            (&mut item.put, Some(changes.clone())),
            (&mut item.post, signs_in),
            (&mut item.delete, Some(changes.clone())),
        ] {
            if let Some(operation) = operation {
                operation.tags = Some(vec!["admin".to_owned()]);
                operation.security = requires.map(|requires| vec![requires]);
            }
        }
    }
}

/// The document of the API's addresses and of the pages'. `dev` adds the addresses of development mode.
/// `channels` are the payment channels that are offered.
pub fn api_document(dev: bool, pages: openapi::OpenApi, channels: &[String]) -> Result<ApiDocument, serde_json::Error> {
    let mut api = Head::openapi();
    for address in table(dev) {
        (address.describe)(&mut api);
    }
    add_security_schemes(&mut api, &CookieNames::new(dev));
    complete_admin_api(&mut api);
    api.merge(pages);
    let mut document = serde_json::to_value(&api)?;
    schema::complete(&mut document, channels);
    Ok(ApiDocument::new(&document))
}

/// This document
#[utoipa::path(
    get,
    path = "/api/openapi.json",
    operation_id = "openapi",
    tag = "service",
    responses((status = 200, description = "OpenAPI 3.1", body = Object)),
)]
pub(crate) async fn openapi_document(request: HttpRequest, app_state: Data<AppState>) -> HttpResponse {
    let mut response = HttpResponse::Ok();
    response.insert_header(ContentType::json()).insert_header((CACHE_CONTROL, "public, max-age=60"));
    app_state.api.json.answer(&request, response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn development_tokens_are_documented_in_development_mode_only() {
        let pages = || openapi::OpenApi::default();
        let [dev, production] = [true, false].map(|dev| api_document(dev, pages(), &[]).unwrap());
        assert_eq!(dev.methods("/api/v1/dev/token"), Some("POST"));
        assert_eq!(production.methods("/api/v1/dev/token"), None);
        assert_eq!(production.methods("/api/v1/time"), Some("GET, HEAD"));
        let has = |document: &ApiDocument, text: &str| String::from_utf8_lossy(&document.json.plain).contains(text);
        assert!(has(&production, "__Host-seckill_session") && !has(&dev, "__Host-"));
    }
}
