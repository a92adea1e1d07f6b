//! HTTP: the table of all addresses, and a file for the handlers of each resource.

mod admin;
pub mod answer_headers;
mod api;
mod bulkhead;
mod challenges;
mod codes;
mod cors;
mod events;
mod extract;
mod flow;
mod gateway;
mod orders;
mod payments;
mod problem;
mod purchases;
mod requests;
mod sales;
mod schema;
mod state;
mod system;

pub use admin::{Caller, CookieNames, as_caller, query};
pub use api::ApiDocument;
pub use bulkhead::{Bulkheads, ReadTerms};
pub use cors::cors;
pub use extract::Tokens;
pub use problem::Problem;
pub use requests::count_request;
pub use system::Health;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::web::{self, ServiceConfig, delete, get, post, put, resource, route as any};
use actix_web::{HttpRequest, HttpResponse, Resource, Route};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::admin::Console;
use crate::flow::permits::Permits;
use crate::pay::PaymentService;
use crate::pay::payment_batcher::PaymentBatcher;
use crate::sale::live::LiveSales;
use crate::sale::order_streams::OrderStreams;

/// What the handlers of all worker threads share.
pub struct AppState {
    pub tokens: Tokens,
    pub bulkheads: Bulkheads,
    pub trusted_proxies: Vec<IpAddr>,
    pub health: Arc<Health>,
    pub metrics: PrometheusHandle,
    pub api: ApiDocument,
    pub permits: Permits,
    pub console: Console,
    pub payment_service: PaymentService,
    pub payment_batcher: PaymentBatcher,
    pub order_streams: OrderStreams,
    pub live: LiveSales,
    pub cookies: CookieNames,
    /// Development mode.
    pub dev: bool,
    pub body_max_bytes: usize,
    /// The time within which a body must arrive.
    pub client_timeout: Duration,
}

/// The page at addresses that do not exist, for browsers.
pub type MissingPage = fn(&HttpRequest) -> Option<HttpResponse>;

/// The table of all addresses but the pages'. `dev` adds those of development mode. `missing` gives browsers a page where there is
/// none; all others get a problem.
pub fn routes(dev: bool, missing: MissingPage) -> impl FnOnce(&mut ServiceConfig) {
    move |app| {
        let mut table: Vec<(&str, Vec<Route>)> = Vec::new();
        // One line per method; the methods of one address stand together.
        let mut at = |path, route| match table.last_mut() {
            Some((last, routes)) if *last == path => routes.push(route),
            _ => table.push((path, vec![route])),
        };
        // The router tries addresses from the top, so the ones that a rush asks for stand first.
        at("/api/v1/sales/{id}/purchases", post().to(purchases::create));
        at("/sales/{id}/state.js", get().to(state::script));
        at("/api/v1/sales/{id}/challenges", post().to(challenges::create));
        at("/api/v1/sales/{id}/passes", post().to(challenges::answer));
        // A forged callback shall cost no more than any other request that is refused.
        at("/api/v1/payments/callbacks/{channel}", post().to(payments::callback));

        // A gateway asks for each request that it passes on; Envoy asks with the method and behind the path of that request.
        at("/api/v1/flow/authorize", any().to(gateway::authorize));
        at("/api/v1/flow/authorize/{path:.*}", any().to(gateway::authorize_path));

        at("/api/v1/time", get().to(system::time));
        if dev {
            at("/api/v1/dev/token", post().to(system::dev_token));
        }
        at("/api/v1/products/{id}", get().to(sales::product));
        at("/api/v1/sales", get().to(sales::list));
        at("/api/v1/sales/{id}", get().to(sales::show));
        at("/api/v1/sales/{id}/state", get().to(state::json));

        at("/api/v1/orders", get().to(orders::list));
        at("/api/v1/orders/{id}", get().to(orders::show));
        at("/api/v1/orders/{id}/events", get().to(events::follow));
        at("/api/v1/orders/{id}/cancel", post().to(orders::cancel));

        at("/api/v1/orders/{id}/payments", post().to(payments::pay));
        at("/api/v1/orders/{id}/refunds", post().to(payments::refund));
        at("/api/v1/payments/channels", get().to(payments::channels));

        at("/api/v1/flow/acquire", post().to(flow::acquire));
        at("/api/v1/flow/release", post().to(flow::release));

        at("/api/v1/admin/session", post().to(admin::session::create));
        at("/api/v1/admin/session", get().to(admin::session::show));
        at("/api/v1/admin/session", delete().to(admin::session::delete));
        at("/api/v1/admin/sessions", delete().to(admin::session::delete_all));
        at("/api/v1/admin/overview", get().to(admin::overview::show));
        at("/api/v1/admin/accounts", get().to(admin::accounts::list));
        at("/api/v1/admin/accounts", post().to(admin::accounts::create));
        at("/api/v1/admin/accounts/{name}", put().to(admin::accounts::change));
        at("/api/v1/admin/sales", get().to(admin::sales::list));
        at("/api/v1/admin/sales", post().to(admin::sales::plan));
        at("/api/v1/admin/sales/{id}", get().to(admin::sales::show));
        at("/api/v1/admin/sales/{id}", delete().to(admin::sales::remove));
        at("/api/v1/admin/sales/{id}/status", put().to(admin::sales::set_status));
        at("/api/v1/admin/sales/{id}/stock", post().to(admin::sales::add_stock));
        at("/api/v1/admin/sales/{id}/lapsed-holds", get().to(admin::lapsed_holds::list));
        at("/api/v1/admin/sales/{id}/live", get().to(admin::live::follow));
        at("/api/v1/admin/products/{name}", put().to(admin::products::set));
        at("/api/v1/admin/products/{name}/picture", put().to(admin::products::set_picture));
        at("/api/v1/admin/orders", get().to(admin::orders::list));
        at("/api/v1/admin/orders.csv", get().to(admin::orders::export));
        at("/api/v1/admin/orders/{id}", get().to(admin::orders::show));
        at("/api/v1/admin/orders/{id}/refunds", post().to(admin::orders::refund));
        at("/api/v1/admin/payments", get().to(admin::money::payments));
        at("/api/v1/admin/payments/conflicts", get().to(admin::money::conflicts));
        at("/api/v1/admin/payments/conflicts/{id}/settle", post().to(admin::money::settle));
        at("/api/v1/admin/refunds", get().to(admin::money::refunds));
        at("/api/v1/admin/refunds/{id}/retry", post().to(admin::money::retry));
        at("/api/v1/admin/outbox", get().to(admin::queues::outbox));
        at("/api/v1/admin/outbox/retry", post().to(admin::queues::retry_messages));
        at("/api/v1/admin/outbox/{id}/retry", post().to(admin::queues::retry_message));
        at("/api/v1/admin/outflows", get().to(admin::outflows::list));
        at("/api/v1/admin/outflows/{name}", put().to(admin::outflows::change));
        at("/api/v1/admin/outflows/{name}/retry", post().to(admin::outflows::retry_items));
        at("/api/v1/admin/outflow-items", get().to(admin::outflows::items));
        at("/api/v1/admin/outflow-items/{id}/retry", post().to(admin::outflows::retry_item));
        at("/api/v1/admin/policies", get().to(admin::policies::list));
        at("/api/v1/admin/policies/{name}", put().to(admin::policies::set));
        at("/api/v1/admin/policies/{name}", delete().to(admin::policies::delete));
        at("/api/v1/admin/policies/{name}/preview", post().to(admin::policies::preview));
        at("/api/v1/admin/apps", get().to(admin::apps::list));
        at("/api/v1/admin/apps", post().to(admin::apps::create));
        at("/api/v1/admin/apps/{name}/tokens", post().to(admin::apps::rotate_token));
        at("/api/v1/admin/grants", put().to(admin::apps::grant));
        at("/api/v1/admin/audit-log", get().to(admin::log::audit));
        at("/api/v1/admin/alarms", get().to(admin::log::alarms));

        at("/api/openapi.json", get().to(api::document));
        at("/healthz", get().to(system::alive));
        at("/readyz", get().to(system::ready));
        at("/metrics", get().to(system::metrics));
        for (path, routes) in table {
            app.service(
                routes.into_iter().fold(resource(path), Resource::route).default_service(unsupported_methods()),
            );
        }
        app.default_service(web::to(move |request: HttpRequest| async move {
            match missing(&request) {
                Some(page) => Ok(page),
                None => problem::unknown_address(request).await,
            }
        }));
    }
}

/// The addresses of a process that only runs workers: its metrics and its health.
pub fn worker_routes(metrics: PrometheusHandle) -> impl FnOnce(&mut ServiceConfig) {
    move |app| {
        app.app_data(web::Data::new(metrics));
        app.service(resource("/metrics").route(get().to(system::worker_metrics)));
        app.service(resource("/healthz").route(get().to(system::alive)));
    }
}

/// Answers the methods that an address does not support.
pub fn unsupported_methods() -> Route {
    web::to(problem::method_not_allowed)
}
