//! The document of the API (OpenAPI), generated from the handlers; tests hold it against the live service.

use std::collections::HashMap;

use actix_web::HttpResponse;
use actix_web::http::header::{CACHE_CONTROL, ContentType};
use actix_web::web::{Bytes, Data};
use utoipa::openapi::path::PathItem;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi, openapi};

use super::problem;
use super::{AppState, admin, events, flow, orders, payments, purchases, sales, state, system};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Seckill",
        description = "A flash sale. Times are milliseconds since the epoch, in fields named `…_ms`; money is in integer \
                       minor units, `…_cents`. Errors are problem details (RFC 9457) with a `code`.",
    ),
    paths(
        system::time,
        sales::list,
        sales::show,
        sales::product,
        state::json,
        state::script,
        purchases::create,
        orders::list,
        orders::show,
        events::follow,
        orders::cancel,
        payments::pay,
        payments::refund,
        payments::channels,
        payments::callback,
        flow::acquire,
        flow::release,
        admin::session::create,
        admin::session::show,
        admin::session::delete,
        admin::policies::list,
        admin::policies::set,
        admin::policies::delete,
        admin::apps::list,
        admin::apps::create,
        admin::apps::grant,
        admin::log::audit,
        admin::log::alarms,
        document,
        system::alive,
        system::ready,
        system::metrics,
    ),
    components(schemas(problem::Body)),
    tags(
        (name = "sales", description = "What is for sale, and when"),
        (name = "buying", description = "From the key to the ticket"),
        (name = "orders", description = "A buyer's own orders"),
        (name = "payment channels", description = "What they say, signed"),
        (name = "flow control", description = "Permits for other applications"),
        (name = "admin", description = "Policies, and who may change them: for people who are signed in"),
        (name = "service", description = "For those who run it"),
    ),
    modifiers(&Callers),
)]
struct Everywhere;

/// What there is in development mode only.
#[derive(OpenApi)]
#[openapi(paths(system::dev_token))]
struct InDevelopment;

/// How callers show who they are.
struct Callers;

impl Modify for Callers {
    fn modify(&self, api: &mut openapi::OpenApi) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .bearer_format("JWT")
            .description(Some("A buyer's token: claims `sub`, `level` (0 where it is missing), `exp`"))
            .build();
        let app = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("An application's token, from `seckill app create`"))
            .build();
        let cookie = ApiKeyValue::with_description(admin::COOKIE_NAME, "What signing in sets");
        let csrf = ApiKeyValue::with_description("X-CSRF-Token", "The session's `csrf_token`");
        let components = api.components.get_or_insert_default();
        components.add_security_scheme("buyer", SecurityScheme::Http(bearer));
        components.add_security_scheme("app", SecurityScheme::Http(app));
        components.add_security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
        components.add_security_scheme("csrf", SecurityScheme::ApiKey(ApiKey::Header(csrf)));
    }
}

/// The document, written once, and the methods of each address as it lists them.
pub struct Api {
    json: Bytes,
    methods: HashMap<String, String>,
}

impl Api {
    /// The document of this room's addresses and of the pages'.
    pub fn new(dev: bool, pages: openapi::OpenApi) -> Result<Self, serde_json::Error> {
        let mut api = Everywhere::openapi();
        api.merge(pages);
        if dev {
            api.merge(InDevelopment::openapi());
        }
        let methods = api.paths.paths.iter().map(|(path, item)| (path.clone(), methods(item).join(", "))).collect();
        Ok(Self { json: serde_json::to_vec(&api)?.into(), methods })
    }

    /// What an address takes, as the header Allow has it.
    pub fn methods(&self, path: &str) -> Option<&str> {
        self.methods.get(path).map(String::as_str)
    }
}

fn methods(item: &PathItem) -> Vec<&'static str> {
    let named = [
        ("GET", &item.get),
        ("POST", &item.post),
        ("PUT", &item.put),
        ("PATCH", &item.patch),
        ("DELETE", &item.delete),
    ];
    named.into_iter().filter(|(_, operation)| operation.is_some()).map(|(name, _)| name).collect()
}

/// This document
#[utoipa::path(
    get,
    path = "/api/openapi.json",
    operation_id = "openapi",
    tag = "service",
    responses((status = 200, description = "OpenAPI 3.1", body = Object)),
)]
pub async fn document(app_state: Data<AppState>) -> HttpResponse {
    HttpResponse::Ok()
        .insert_header(ContentType::json())
        .insert_header((CACHE_CONTROL, "public, max-age=60"))
        .body(app_state.api.json.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_for_the_asking_are_known_in_development_only() {
        let pages = || openapi::OpenApi::default();
        let [dev, elsewhere] = [true, false].map(|dev| Api::new(dev, pages()).unwrap());
        assert_eq!(dev.methods("/api/v1/dev/token"), Some("POST"));
        assert_eq!(elsewhere.methods("/api/v1/dev/token"), None);
        assert_eq!(elsewhere.methods("/api/v1/time"), Some("GET"));
    }
}
