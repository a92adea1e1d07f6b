//! HTTP: the whole URL table on one screen.

mod extract;
mod orders;
mod problem;
mod purchases;
mod sales;
mod state;
mod system;

pub use extract::Tokens;
pub use system::Health;

use std::net::IpAddr;
use std::sync::Arc;

use actix_web::web::{self, ServiceConfig, get, post, resource};

/// What the handlers of all threads share.
pub struct Reception {
    pub tokens: Tokens,
    pub trusted_proxies: Vec<IpAddr>,
    pub health: Arc<Health>,
    pub metrics: metrics_exporter_prometheus::PrometheusHandle,
    pub body_max_bytes: usize,
}

/// Every address that the service answers at, beside its pages.
pub fn routes(dev: bool, body_max_bytes: usize) -> impl FnOnce(&mut ServiceConfig) {
    move |app| {
        app.app_data(web::PayloadConfig::new(body_max_bytes));

        app.route("/sales/{id}/state.js", get().to(state::script));

        app.route("/api/v1/time", get().to(system::time));
        if dev {
            app.route("/api/v1/dev/token", post().to(system::dev_token));
        }
        app.route("/api/v1/products/{id}", get().to(sales::product));
        app.route("/api/v1/sales", get().to(sales::list));
        app.route("/api/v1/sales/{id}", get().to(sales::show));
        app.route("/api/v1/sales/{id}/state", get().to(state::json));
        app.service(resource("/api/v1/sales/{id}/purchases").route(post().to(purchases::create)));

        app.route("/api/v1/orders", get().to(orders::list));
        app.route("/api/v1/orders/{id}", get().to(orders::show));
        app.route("/api/v1/orders/{id}/cancel", post().to(orders::cancel));

        app.route("/healthz", get().to(system::alive));
        app.route("/readyz", get().to(system::ready));
        app.route("/metrics", get().to(system::metrics));
        app.default_service(web::to(problem::no_such_page));
    }
}
