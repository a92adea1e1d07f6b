//! The table of all addresses of the API, and its document.

mod document;
mod schema;

pub use crate::buyer_api::shortcut::Shortcut;
pub use document::api_document;

use actix_web::web::{self, ServiceConfig, delete, get, post, put, resource, route as any};
use actix_web::{HttpRequest, HttpResponse, Resource, Route};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::admin_api;
use crate::buyer_api;
use crate::flow_api;
use crate::http::{problem, system, unsupported_methods};

pub type MissingPage = fn(&HttpRequest) -> Option<HttpResponse>;

/// The table of all addresses except the pages'. `dev` adds the addresses of development mode. At an unknown address, `missing` gives browsers
/// a page; all other clients get a problem.
pub fn routes(dev: bool, missing: MissingPage) -> impl FnOnce(&mut ServiceConfig) {
    move |app| {
        let mut table: Vec<(&str, Vec<Route>)> = Vec::new();
        // One line per method; the methods of one address are adjacent.
        let mut at = |path, route| match table.last_mut() {
            Some((last, routes)) if *last == path => routes.push(route),
            _ => table.push((path, vec![route])),
        };
        // The router tries addresses from the top, so the busiest addresses come first.
        at("/api/v1/sales/{id}/purchases", post().to(buyer_api::purchases::create));
        at("/sales/{id}/state.js", get().to(buyer_api::state::sale_state_script));
        at("/api/v1/sales/{id}/challenges", post().to(buyer_api::challenges::ask_challenge));
        at("/api/v1/sales/{id}/passes", post().to(buyer_api::challenges::answer_challenge));
        // A forged callback must not cost more than any other refused request.
        at("/api/v1/payments/callbacks/{channel}", post().to(buyer_api::payments::payment_callback));

        // A gateway asks once for each request that it passes on. Envoy keeps that request's method, and appends its path.
        at("/api/v1/flow/authorize", any().to(flow_api::gateway::authorize));
        at("/api/v1/flow/authorize/{path:.*}", any().to(flow_api::gateway::authorize_path));

        at("/api/v1/time", get().to(system::time));
        if dev {
            at("/api/v1/dev/token", post().to(system::dev_token));
        }
        at("/api/v1/products/{id}", get().to(buyer_api::sales::show_product));
        at("/api/v1/sales", get().to(buyer_api::sales::list_sales));
        at("/api/v1/sales/{id}", get().to(buyer_api::sales::show_sale));
        at("/api/v1/sales/{id}/state", get().to(buyer_api::state::sale_state));

        at("/api/v1/orders", get().to(buyer_api::orders::list_orders));
        at("/api/v1/orders/{id}", get().to(buyer_api::orders::show_order));
        at("/api/v1/orders/{id}/events", get().to(buyer_api::events::follow_order));
        at("/api/v1/orders/{id}/cancel", post().to(buyer_api::orders::cancel_order));

        at("/api/v1/orders/{id}/payments", post().to(buyer_api::payments::pay_order));
        at("/api/v1/orders/{id}/refunds", post().to(buyer_api::payments::refund_order));
        at("/api/v1/payments/channels", get().to(buyer_api::payments::payment_channels));

        at("/api/v1/flow/acquire", post().to(flow_api::permits::acquire));
        at("/api/v1/flow/release", post().to(flow_api::permits::release));

        at("/api/v1/admin/session", post().to(admin_api::session::sign_in));
        at("/api/v1/admin/session", get().to(admin_api::session::show_session));
        at("/api/v1/admin/session", delete().to(admin_api::session::sign_out));
        at("/api/v1/admin/sessions", delete().to(admin_api::session::sign_out_everywhere));
        at("/api/v1/admin/overview", get().to(admin_api::log::overview));
        at("/api/v1/admin/accounts", get().to(admin_api::accounts::list_accounts));
        at("/api/v1/admin/accounts", post().to(admin_api::accounts::create_account));
        at("/api/v1/admin/accounts/{name}", put().to(admin_api::accounts::change_account));
        at("/api/v1/admin/sales", get().to(admin_api::sales::list_managed_sales));
        at("/api/v1/admin/sales", post().to(admin_api::sales::plan_sale));
        at("/api/v1/admin/sales/{id}", get().to(admin_api::sales::show_managed_sale));
        at("/api/v1/admin/sales/{id}", delete().to(admin_api::sales::remove_sale));
        at("/api/v1/admin/sales/{id}/status", put().to(admin_api::sales::set_sale_status));
        at("/api/v1/admin/sales/{id}/stock", post().to(admin_api::sales::add_stock));
        at("/api/v1/admin/sales/{id}/lapsed-holds", get().to(admin_api::sales::lapsed_holds));
        at("/api/v1/admin/sales/{id}/live", get().to(admin_api::live::watch_sale));
        at("/api/v1/admin/products/{name}", put().to(admin_api::products::set_product));
        at("/api/v1/admin/products/{name}/picture", put().to(admin_api::products::set_product_picture));
        at("/api/v1/admin/orders", get().to(admin_api::orders::search_orders));
        at("/api/v1/admin/orders.csv", get().to(admin_api::orders::export_orders));
        at("/api/v1/admin/orders/{id}", get().to(admin_api::orders::show_any_order));
        at("/api/v1/admin/orders/{id}/refunds", post().to(admin_api::orders::refund_any_order));
        at("/api/v1/admin/payments", get().to(admin_api::money::list_payments));
        at("/api/v1/admin/payments/conflicts", get().to(admin_api::money::list_conflicts));
        at("/api/v1/admin/payments/conflicts/{id}/settle", post().to(admin_api::money::settle_conflict));
        at("/api/v1/admin/refunds", get().to(admin_api::money::list_refunds));
        at("/api/v1/admin/refunds/{id}/retry", post().to(admin_api::money::retry_refund));
        at("/api/v1/admin/outbox", get().to(admin_api::queues::show_outbox));
        at("/api/v1/admin/outbox/retry", post().to(admin_api::queues::retry_messages));
        at("/api/v1/admin/outbox/{id}/retry", post().to(admin_api::queues::retry_message));
        at("/api/v1/admin/outflows", get().to(admin_api::outflows::list_outflows));
        at("/api/v1/admin/outflows/{name}", put().to(admin_api::outflows::change_outflow));
        at("/api/v1/admin/outflows/{name}/retry", post().to(admin_api::outflows::retry_outflow_items));
        at("/api/v1/admin/outflow-items", get().to(admin_api::outflows::list_outflow_items));
        at("/api/v1/admin/outflow-items/{id}/retry", post().to(admin_api::outflows::retry_outflow_item));
        at("/api/v1/admin/policies", get().to(admin_api::policies::list_policies));
        at("/api/v1/admin/policies/{name}", put().to(admin_api::policies::set_policy));
        at("/api/v1/admin/policies/{name}", delete().to(admin_api::policies::delete_policy));
        at("/api/v1/admin/policies/{name}/preview", post().to(admin_api::policies::preview_policy));
        at("/api/v1/admin/apps", get().to(admin_api::apps::list_apps));
        at("/api/v1/admin/apps", post().to(admin_api::apps::create_app));
        at("/api/v1/admin/apps/{name}/tokens", post().to(admin_api::apps::rotate_app_token));
        at("/api/v1/admin/grants", put().to(admin_api::apps::set_grant));
        at("/api/v1/admin/audit-log", get().to(admin_api::log::audit_log));
        at("/api/v1/admin/alarms", get().to(admin_api::log::alarms));

        at("/api/openapi.json", get().to(document::openapi_document));
        at("/healthz", get().to(system::health));
        at("/readyz", get().to(system::readiness));
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

pub fn worker_routes(metrics: PrometheusHandle) -> impl FnOnce(&mut ServiceConfig) {
    move |app| {
        app.app_data(web::Data::new(metrics));
        app.service(resource("/metrics").route(get().to(system::worker_metrics)));
        app.service(resource("/healthz").route(get().to(system::health)));
    }
}
