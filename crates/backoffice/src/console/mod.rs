//! The console: pages for people who are signed in. A page only shows; whatever changes something goes through the admin API, sent
//! by the script that all pages share (`frontend-static/console/console.js`). docs/console.md explains how to add a page.

mod accounts;
mod alarms;
mod audit_log;
mod files;
mod frame;
mod language;
mod money;
mod orders;
mod overview;
mod policies;
mod policy_form;
mod products;
mod queues;
mod sale_form;
mod sales;
mod show;
mod sign_in;
mod words;

pub use files::Files;
pub use frame::Access;

use actix_web::Route;
use actix_web::web::{ServiceConfig, get, resource};

/// The table of all pages: address, who may see it, and its handler.
/// The first address that fits is taken, so `/admin/sales/new` stands before `/admin/sales/{id}`.
fn table(mut at: impl FnMut(&'static str, Access, Route)) {
    at("/admin", Access::Viewers, get().to(overview::show));
    at("/admin/sales", Access::Viewers, get().to(sales::list));
    at("/admin/sales/new", Access::Operators, get().to(sale_form::plan));
    at("/admin/sales/{id}", Access::Viewers, get().to(sales::show));
    at("/admin/sales/{id}/edit", Access::Operators, get().to(sale_form::change));
    at("/admin/sales/{id}/live", Access::Viewers, get().to(sales::live));
    at("/admin/sales/{id}/report", Access::Viewers, get().to(sales::report));
    at("/admin/sales/{id}/activity", Access::Operators, get().to(sales::activity));
    at("/admin/products", Access::Operators, get().to(products::list));
    at("/admin/policies", Access::Viewers, get().to(policies::list));
    at("/admin/policies/new", Access::Operators, get().to(policies::plan));
    at("/admin/policies/draft", Access::Operators, get().to(policies::draft));
    at("/admin/policies/{app}/{name}", Access::Viewers, get().to(policies::show));
    at("/admin/apps", Access::Admins, get().to(accounts::apps));
    at("/admin/alarms", Access::Viewers, get().to(alarms::list));
    at("/admin/runbooks", Access::Viewers, get().to(alarms::runbook));
    at("/admin/runbooks/{name}", Access::Viewers, get().to(alarms::runbook));
    at("/admin/orders", Access::Viewers, get().to(orders::list));
    at("/admin/orders/{id}", Access::Viewers, get().to(orders::order));
    at("/admin/payments", Access::Operators, get().to(money::payments));
    at("/admin/refunds", Access::Operators, get().to(money::refunds));
    at("/admin/outflows", Access::Operators, get().to(queues::outflows));
    at("/admin/outbox", Access::Operators, get().to(queues::outbox));
    at("/admin/accounts", Access::Admins, get().to(accounts::list));
    at("/admin/audit-log", Access::Admins, get().to(audit_log::list));
}

pub fn pages() -> Vec<(&'static str, Access)> {
    let mut all = Vec::new();
    table(|path, access, _| all.push((path, access)));
    all
}

/// The console's addresses; `unsupported` answers the methods that they do not support. The service also gives all handlers the
/// console's `Files` as application data.
pub fn routes(unsupported: fn() -> Route) -> impl FnOnce(&mut ServiceConfig) {
    move |app| {
        table(|path, access, route| {
            let folder = format!("{path}/");
            let page = resource(vec![path, &folder]).app_data(access).route(route);
            app.service(page.default_service(unsupported()));
        });
        let mut open = |path: &str, route: Route| {
            app.service(resource(path).app_data(Access::Viewers).route(route).default_service(unsupported()));
        };
        open("/admin/sign-in", get().to(sign_in::show));
        open("/admin/assets/{file}", get().to(files::asset));
        open("/admin/{path:.*}", get().to(frame::missing));
    }
}
