//! Shared parts of all handlers: reading a request, problems, bulkheads; and the addresses of the service itself.

pub mod addresses;
pub mod answer_headers;
mod api_document;
mod bulkhead;
pub mod codes;
mod content;
mod cors;
mod event_stream;
pub mod extract;
pub mod file_headers;
pub mod head_requests;
pub mod hosts;
mod metrics_page;
pub mod problem;
pub mod quota;
mod requests;
pub mod static_files;
pub mod system;

pub use api_document::ApiDocument;
pub use bulkhead::{Bulkhead, Bulkheads};
pub use content::Content;
pub use cors::cors;
pub use event_stream::event_stream;
pub use extract::{TrustedProxies, query};
pub use metrics_page::MetricsPage;
pub use problem::Problem;
pub use requests::count_request;
pub use system::Health;

use std::sync::Arc;
use std::time::Duration;

use actix_web::{HttpResponse, Route, web};

use seckill_domain::database_clock::DatabaseClock;
use seckill_tokens::Tokens;

/// State for the handlers of all features.
pub struct AppState {
    pub tokens: Tokens,
    pub bulkheads: Bulkheads,
    pub trusted_proxies: TrustedProxies,
    pub health: Arc<Health>,
    pub metrics: MetricsPage,
    pub api: ApiDocument,
    pub clock: Arc<DatabaseClock>,
    pub dev: bool,
    pub body_max_bytes: usize,
    pub client_timeout: Duration,
}

/// The answer of a handler.
pub type Answer = Result<HttpResponse, Problem>;

pub fn unsupported_methods() -> Route {
    web::to(problem::method_not_allowed)
}
