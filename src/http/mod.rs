//! The shared parts of all handlers: reading a request, problems, bulkheads, the signed-in caller; and the addresses of the service
//! itself.

pub mod answer_headers;
mod api_document;
mod bulkhead;
pub(crate) mod caller;
pub(crate) mod codes;
mod content;
pub(crate) mod cookies;
mod cors;
mod event_stream;
pub(crate) mod extract;
pub mod hosts;
mod metrics_page;
pub(crate) mod problem;
mod requests;
pub(crate) mod system;

pub use api_document::ApiDocument;
pub use bulkhead::{Bulkhead, Bulkheads};
pub use caller::{Ask, Caller};
pub use content::Content;
pub use cookies::CookieNames;
pub use cors::cors;
pub use event_stream::event_stream;
pub use extract::{Tokens, query};
pub use metrics_page::MetricsPage;
pub use problem::Problem;
pub use requests::count_request;
pub use system::Health;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::{HttpResponse, Route, web};

use crate::admin::Console;
use crate::flow::permits::Permits;
use crate::live::LiveSales;
use crate::pay::PaymentService;
use crate::pay::batchers::PaymentBatchers;
use crate::sale::order_streams::OrderStreams;

pub struct AppState {
    pub tokens: Tokens,
    pub bulkheads: Bulkheads,
    pub trusted_proxies: Vec<IpAddr>,
    pub health: Arc<Health>,
    pub metrics: MetricsPage,
    pub api: ApiDocument,
    pub permits: Permits,
    pub console: Console,
    pub payment_service: PaymentService,
    pub payment_batchers: PaymentBatchers,
    pub order_streams: OrderStreams,
    pub live: LiveSales,
    pub cookies: CookieNames,
    pub dev: bool,
    pub body_max_bytes: usize,
    pub client_timeout: Duration,
}

/// The answer of a handler.
pub type Answer = Result<HttpResponse, Problem>;

pub fn unsupported_methods() -> Route {
    web::to(problem::method_not_allowed)
}
