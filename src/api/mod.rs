//! The table of all addresses of the API, and its document.

mod document;
mod schema;

pub use document::api_document;
pub use seckill_buying::api::shortcut::Shortcut;

use actix_web::http::header::ALLOW;
use actix_web::web::{self, ServiceConfig, get, head, resource};
use actix_web::{HttpRequest, HttpResponse, Resource, Route};
use metrics_exporter_prometheus::PrometheusHandle;

use seckill_http::addresses::{Address, address};
use seckill_http::{problem, system, unsupported_methods};

pub(crate) type MissingPage = fn(&HttpRequest) -> Option<HttpResponse>;

/// All addresses except the pages', the busy ones first. The addresses of one path are adjacent. `dev` adds those of development mode.
fn table(dev: bool) -> Vec<Address> {
    let mut table: Vec<Address> = [
        seckill_buying::api::addresses(),
        seckill_money::api::addresses(),
        seckill_flow::api::addresses(),
        seckill_backoffice::api::addresses(),
        vec![address(document::__path_openapi_document, document::openapi_document)],
        system::addresses(dev),
    ]
    .into_iter()
    .flatten()
    .collect();
    table.sort_by_key(|address| !address.is_busy);
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
        let mut at = |path: &str, to_get: Route, to_head: Route| {
            let other = web::to(async || HttpResponse::MethodNotAllowed().insert_header((ALLOW, "GET, HEAD")).finish());
            app.service(resource(path).route(to_get).route(to_head).default_service(other));
        };
        at("/metrics", get().to(system::worker_metrics), head().to(system::worker_metrics));
        at("/healthz", get().to(system::health), head().to(system::health));
    }
}

#[cfg(test)]
mod tests {
    use actix_web::App;
    use actix_web::http::Method;
    use actix_web::test::{TestRequest, call_service, init_service};
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[actix_web::test]
    async fn workers_answer_head_as_get() {
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let app = init_service(App::new().configure(worker_routes(metrics))).await;
        for path in ["/metrics", "/healthz"] {
            for (method, status) in [(Method::GET, 200), (Method::HEAD, 200), (Method::POST, 405)] {
                let request = TestRequest::default().method(method.clone()).uri(path).to_request();
                let answer = call_service(&app, request).await;
                assert_eq!(answer.status(), status, "{method} {path}");
                let allowed = answer.headers().get(ALLOW).map(|methods| methods.to_str().unwrap());
                assert_eq!(allowed, (status == 405).then_some("GET, HEAD"));
            }
        }
    }
}
