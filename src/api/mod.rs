//! The table of all addresses of the API, and its document.

mod document;
mod schema;

pub use document::api_document;
pub use seckill_buying::api::shortcut::Shortcut;

use actix_web::web::{self, ServiceConfig, delete, get, post, put, resource, route as any};
use actix_web::{FromRequest, Handler, HttpRequest, HttpResponse, Resource, Responder, Route};
use metrics_exporter_prometheus::PrometheusHandle;
use utoipa::__dev::{SchemaReferences, Tags};
use utoipa::Path;
use utoipa::openapi::{HttpMethod, OpenApi};

use seckill_backoffice::api as admin_api;
use seckill_buying::api as buyer_api;
use seckill_flow::api::{gateway, permits};
use seckill_http::{problem, system, unsupported_methods};
use seckill_money::api as payments;

pub(crate) type MissingPage = fn(&HttpRequest) -> Option<HttpResponse>;

struct Address {
    path: String,
    route: Route,
    /// Adds the address to the document.
    describe: fn(&mut OpenApi),
}

/// A handler with the type that `utoipa::path` has made of its attributes: `__path_` and the handler's name.
fn address<P, H, A>(_: P, handler: H) -> Address
where
    P: Path + SchemaReferences + Tags<'static>,
    H: Handler<A>,
    A: FromRequest + 'static,
    H::Output: Responder + 'static,
{
    let route = match P::methods()[..] {
        [HttpMethod::Get] => get(),
        [HttpMethod::Post] => post(),
        [HttpMethod::Put] => put(),
        _ => delete(),
    };
    Address { path: P::path(), route: route.to(handler), describe: describe::<P> }
}

fn describe<P: Path + SchemaReferences + Tags<'static>>(api: &mut OpenApi) {
    let (mut schemas, mut operation) = (Vec::new(), P::operation());
    P::schemas(&mut schemas);
    api.components.get_or_insert_default().schemas.extend(schemas);
    operation.tags.get_or_insert_default().extend(P::tags().into_iter().map(str::to_owned));
    api.paths.add_path_operation(P::path(), P::methods(), operation);
}

/// The table of all addresses except the pages'. The addresses of one path are adjacent. `dev` adds the addresses of development mode.
fn table(dev: bool) -> Vec<Address> {
    // The router tries addresses from the top, so the busiest addresses come first.
    let mut table = vec![
        address(buyer_api::purchases::__path_create, buyer_api::purchases::create),
        address(buyer_api::state::__path_sale_state_script, buyer_api::state::sale_state_script),
        address(buyer_api::challenges::__path_ask_challenge, buyer_api::challenges::ask_challenge),
        address(buyer_api::challenges::__path_answer_challenge, buyer_api::challenges::answer_challenge),
        // A forged callback must not cost more than any other refused request.
        address(payments::__path_payment_callback, payments::payment_callback),
        // A gateway asks once for each request that it passes on. Envoy keeps that request's method, and appends its path.
        Address { route: any().to(gateway::authorize), ..address(gateway::__path_authorize, gateway::authorize) },
        Address {
            path: "/api/v1/flow/authorize/{path:.*}".to_owned(),
            route: any().to(gateway::authorize_path),
            ..address(gateway::__path_authorize_path, gateway::authorize_path)
        },
        address(system::__path_time, system::time),
        address(buyer_api::sales::__path_show_product, buyer_api::sales::show_product),
        address(buyer_api::sales::__path_list_sales, buyer_api::sales::list_sales),
        address(buyer_api::sales::__path_show_sale, buyer_api::sales::show_sale),
        address(buyer_api::state::__path_sale_state, buyer_api::state::sale_state),
        address(buyer_api::orders::__path_list_orders, buyer_api::orders::list_orders),
        address(buyer_api::orders::__path_show_order, buyer_api::orders::show_order),
        address(buyer_api::events::__path_follow_order, buyer_api::events::follow_order),
        address(buyer_api::orders::__path_cancel_order, buyer_api::orders::cancel_order),
        address(payments::__path_pay_order, payments::pay_order),
        address(payments::__path_refund_order, payments::refund_order),
        address(payments::__path_payment_channels, payments::payment_channels),
        address(permits::__path_acquire, permits::acquire),
        address(permits::__path_release, permits::release),
        address(admin_api::session::__path_sign_in, admin_api::session::sign_in),
        address(admin_api::session::__path_show_session, admin_api::session::show_session),
        address(admin_api::session::__path_sign_out, admin_api::session::sign_out),
        address(admin_api::session::__path_sign_out_everywhere, admin_api::session::sign_out_everywhere),
        address(admin_api::log::__path_overview, admin_api::log::overview),
        address(admin_api::accounts::__path_list_accounts, admin_api::accounts::list_accounts),
        address(admin_api::accounts::__path_create_account, admin_api::accounts::create_account),
        address(admin_api::accounts::__path_change_account, admin_api::accounts::change_account),
        address(admin_api::sales::__path_list_managed_sales, admin_api::sales::list_managed_sales),
        address(admin_api::sales::__path_plan_sale, admin_api::sales::plan_sale),
        address(admin_api::sales::__path_show_managed_sale, admin_api::sales::show_managed_sale),
        address(admin_api::sales::__path_remove_sale, admin_api::sales::remove_sale),
        address(admin_api::sales::__path_set_sale_status, admin_api::sales::set_sale_status),
        address(admin_api::sales::__path_add_stock, admin_api::sales::add_stock),
        address(admin_api::sales::__path_lapsed_holds, admin_api::sales::lapsed_holds),
        address(admin_api::live::__path_watch_sale, admin_api::live::watch_sale),
        address(admin_api::products::__path_set_product, admin_api::products::set_product),
        address(admin_api::products::__path_set_product_picture, admin_api::products::set_product_picture),
        address(admin_api::orders::__path_search_orders, admin_api::orders::search_orders),
        address(admin_api::orders::__path_export_orders, admin_api::orders::export_orders),
        address(admin_api::orders::__path_show_any_order, admin_api::orders::show_any_order),
        address(admin_api::orders::__path_refund_any_order, admin_api::orders::refund_any_order),
        address(admin_api::money::__path_list_payments, admin_api::money::list_payments),
        address(admin_api::money::__path_list_conflicts, admin_api::money::list_conflicts),
        address(admin_api::money::__path_settle_conflict, admin_api::money::settle_conflict),
        address(admin_api::money::__path_list_refunds, admin_api::money::list_refunds),
        address(admin_api::money::__path_retry_refund, admin_api::money::retry_refund),
        address(admin_api::queues::__path_show_outbox, admin_api::queues::show_outbox),
        address(admin_api::queues::__path_retry_messages, admin_api::queues::retry_messages),
        address(admin_api::queues::__path_retry_message, admin_api::queues::retry_message),
        address(admin_api::outflows::__path_list_outflows, admin_api::outflows::list_outflows),
        address(admin_api::outflows::__path_change_outflow, admin_api::outflows::change_outflow),
        address(admin_api::outflows::__path_retry_outflow_items, admin_api::outflows::retry_outflow_items),
        address(admin_api::outflows::__path_list_outflow_items, admin_api::outflows::list_outflow_items),
        address(admin_api::outflows::__path_retry_outflow_item, admin_api::outflows::retry_outflow_item),
        address(admin_api::policies::__path_list_policies, admin_api::policies::list_policies),
        address(admin_api::policies::__path_set_policy, admin_api::policies::set_policy),
        address(admin_api::policies::__path_delete_policy, admin_api::policies::delete_policy),
        address(admin_api::policies::__path_preview_policy, admin_api::policies::preview_policy),
        address(admin_api::apps::__path_list_apps, admin_api::apps::list_apps),
        address(admin_api::apps::__path_create_app, admin_api::apps::create_app),
        address(admin_api::apps::__path_rotate_app_token, admin_api::apps::rotate_app_token),
        address(admin_api::apps::__path_set_grant, admin_api::apps::set_grant),
        address(admin_api::log::__path_audit_log, admin_api::log::audit_log),
        address(admin_api::log::__path_alarms, admin_api::log::alarms),
        address(document::__path_openapi_document, document::openapi_document),
        address(system::__path_health, system::health),
        address(system::__path_readiness, system::readiness),
        address(system::__path_metrics, system::metrics),
    ];
    if dev {
        table.push(address(system::__path_dev_token, system::dev_token));
    }
    table
}

/// The routes of the table. At an unknown address, `missing` gives browsers a page; all other clients get a problem.
pub(crate) fn routes(dev: bool, missing: MissingPage) -> impl FnOnce(&mut ServiceConfig) {
    move |app| {
        let mut resources: Vec<(String, Resource)> = Vec::new();
        for Address { path, route, .. } in table(dev) {
            let of_path = match resources.pop_if(|(last, _)| *last == path) {
                Some((_, resource)) => resource,
                None => resource(path.as_str()).default_service(unsupported_methods()),
            };
            resources.push((path, of_path.route(route)));
        }
        for (_, resource) in resources {
            app.service(resource);
        }
        app.default_service(web::to(move |request: HttpRequest| async move {
            match missing(&request) {
                Some(page) => Ok(page),
                None => problem::unknown_address(request).await,
            }
        }));
    }
}

pub(crate) fn worker_routes(metrics: PrometheusHandle) -> impl FnOnce(&mut ServiceConfig) {
    move |app| {
        app.app_data(web::Data::new(metrics));
        app.service(resource("/metrics").route(get().to(system::worker_metrics)));
        app.service(resource("/healthz").route(get().to(system::health)));
    }
}
