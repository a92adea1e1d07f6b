//! The API's document (OpenAPI), generated from the handlers. Tests compare it with the live service.

use std::collections::HashMap;

use actix_web::HttpResponse;
use actix_web::http::header::{CACHE_CONTROL, ContentType};
use actix_web::web::{Bytes, Data};
use utoipa::openapi::path::PathItem;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi, openapi};

use super::admin::CookieNames;
use super::problem;
use super::{
    AppState, admin, challenges, events, flow, gateway, orders, payments, purchases, sales, schema, state, system,
};
use crate::domain::live::LiveFigures;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Seckill",
        description = "A flash sale. Times are milliseconds since the epoch, in fields named `…_ms`; money is in integer \
                       minor units, in fields named `…_cents`. Errors are problem details (RFC 9457) with a `code`.",
    ),
    paths(
        system::time,
        sales::list,
        sales::show,
        sales::product,
        state::json,
        state::script,
        challenges::create,
        challenges::answer,
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
        gateway::authorize,
        gateway::authorize_path,
        admin::session::create,
        admin::session::show,
        admin::session::delete,
        admin::session::delete_all,
        admin::overview::show,
        admin::accounts::list,
        admin::accounts::create,
        admin::accounts::change,
        admin::sales::list,
        admin::sales::plan,
        admin::sales::show,
        admin::sales::remove,
        admin::sales::set_status,
        admin::sales::add_stock,
        admin::lapsed_holds::list,
        admin::live::follow,
        admin::products::set,
        admin::products::set_picture,
        admin::orders::list,
        admin::orders::export,
        admin::orders::show,
        admin::orders::refund,
        admin::money::payments,
        admin::money::conflicts,
        admin::money::settle,
        admin::money::refunds,
        admin::money::retry,
        admin::queues::outbox,
        admin::queues::retry_messages,
        admin::queues::retry_message,
        admin::outflows::list,
        admin::outflows::change,
        admin::outflows::retry_items,
        admin::outflows::items,
        admin::outflows::retry_item,
        admin::policies::list,
        admin::policies::set,
        admin::policies::delete,
        admin::policies::preview,
        admin::apps::list,
        admin::apps::create,
        admin::apps::rotate_token,
        admin::apps::grant,
        admin::log::audit,
        admin::log::alarms,
        document,
        system::alive,
        system::ready,
        system::metrics,
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
struct Addresses;

/// Addresses that exist in development mode only.
#[derive(OpenApi)]
#[openapi(paths(system::dev_token))]
struct DevAddresses;

/// How callers authenticate.
struct SecuritySchemes {
    cookies: CookieNames,
}

impl Modify for SecuritySchemes {
    fn modify(&self, api: &mut openapi::OpenApi) {
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
        let cookie = ApiKeyValue::with_description(self.cookies.session, "Set by signing in");
        let csrf = ApiKeyValue::with_description("X-CSRF-Token", "The session's `csrf_token`");
        let components = api.components.get_or_insert_default();
        components.add_security_scheme("buyer", SecurityScheme::Http(bearer));
        components.add_security_scheme("app", SecurityScheme::Http(app));
        components.add_security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
        components.add_security_scheme("csrf", SecurityScheme::ApiKey(ApiKey::Header(csrf)));
    }
}

/// The document as JSON, and the methods of each address that it lists.
pub struct ApiDocument {
    json: Bytes,
    methods: HashMap<String, String>,
}

impl ApiDocument {
    /// The document of the API's addresses and of the pages'. `dev` adds those of development mode.
    /// `channels` are the payment channels that are offered.
    pub fn new(dev: bool, pages: openapi::OpenApi, channels: &[String]) -> Result<Self, serde_json::Error> {
        let mut api = Addresses::openapi();
        SecuritySchemes { cookies: CookieNames::new(dev) }.modify(&mut api);
        api.merge(pages);
        if dev {
            api.merge(DevAddresses::openapi());
        }
        let methods = api.paths.paths.iter().map(|(path, item)| (path.clone(), methods(item).join(", "))).collect();
        let mut document = serde_json::to_value(&api)?;
        schema::complete(&mut document, channels);
        Ok(Self { json: document.to_string().into(), methods })
    }

    /// The methods of an address, as the header Allow lists them.
    pub fn methods(&self, path: &str) -> Option<&str> {
        self.methods.get(path).map(String::as_str)
    }
}

fn methods(item: &PathItem) -> Vec<&'static str> {
    let operations = [
        ("GET", &item.get),
        ("POST", &item.post),
        ("PUT", &item.put),
        ("PATCH", &item.patch),
        ("DELETE", &item.delete),
    ];
    operations.into_iter().filter(|(_, operation)| operation.is_some()).map(|(name, _)| name).collect()
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
    fn development_tokens_are_documented_in_development_mode_only() {
        let pages = || openapi::OpenApi::default();
        let [dev, production] = [true, false].map(|dev| ApiDocument::new(dev, pages(), &[]).unwrap());
        assert_eq!(dev.methods("/api/v1/dev/token"), Some("POST"));
        assert_eq!(production.methods("/api/v1/dev/token"), None);
        assert_eq!(production.methods("/api/v1/time"), Some("GET"));
        let has = |document: &ApiDocument, text: &str| String::from_utf8_lossy(&document.json).contains(text);
        assert!(has(&production, "__Host-seckill_session") && !has(&dev, "__Host-"));
    }
}
