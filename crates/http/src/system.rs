//! The service itself: its time, its health, its metrics, and buyers' tokens in development mode.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Instant;

use actix_web::HttpResponse;
use actix_web::web::Data;
use metrics_exporter_prometheus::PrometheusHandle;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::addresses::{Address, address};
use super::codes::{Code, problems};
use super::extract::Body;
use super::problem::Problem;
use super::{Answer, AppState};
use seckill_domain::ids::UserId;
use seckill_domain::json_object;
use seckill_domain::memory_level::MemoryLevel;

const DEV_TOKEN_S: i64 = 86_400;
/// The greatest integer that every JSON reader represents exactly.
const LEVEL_MAX: u64 = (1 << 53) - 1;

/// The addresses of the service itself. `dev` adds those of development mode.
pub fn addresses(dev: bool) -> Vec<Address> {
    let mut addresses = vec![
        address(__path_time, time).busy(),
        address(__path_health, health),
        address(__path_readiness, readiness),
        address(__path_metrics, metrics),
    ];
    if dev {
        addresses.push(address(__path_dev_token, dev_token));
    }
    addresses
}

#[derive(Default)]
pub struct Health {
    pub ledger: AtomicBool,
    lacks_migrations: AtomicBool,
    pub gate: AtomicBool,
    pub stopping: AtomicBool,
    redis_memory: AtomicU8,
}

impl Health {
    pub fn note_migrations(&self, has_them: bool) {
        if !self.lacks_migrations.swap(!has_them, Ordering::Relaxed) && !has_them {
            tracing::error!("the database lacks migrations of this program: run `seckill migrate`");
        }
    }

    pub fn note_redis_memory(&self, level: MemoryLevel) {
        if self.redis_memory.swap(level as u8, Ordering::Relaxed) < level as u8 {
            tracing::warn!(level = level.as_str(), "Redis has little memory left");
        }
    }

    fn readiness(&self) -> Readiness {
        let level = MemoryLevel::from_repr(self.redis_memory.load(Ordering::Relaxed)).unwrap_or(MemoryLevel::Ample);
        let (postgres, redis) = (self.ledger.load(Ordering::Relaxed), self.gate.load(Ordering::Relaxed));
        let schema = !self.lacks_migrations.load(Ordering::Relaxed);
        let leaving = self.stopping.load(Ordering::Relaxed);
        let ready = postgres && schema && redis && !leaving;
        Readiness { ready, postgres, schema, redis, redis_memory: level.as_str(), leaving }
    }
}

/// The service's time.
#[derive(Serialize, ToSchema)]
struct Now {
    now_ms: i64,
}

/// The service's time, for countdowns
#[utoipa::path(
    get,
    path = "/api/v1/time",
    tag = "sales",
    responses((status = 200, description = "PostgreSQL's time", body = Now)),
)]
pub async fn time(app_state: Data<AppState>) -> HttpResponse {
    let now_ms = app_state.clock.now_ms();
    HttpResponse::Ok().json(Now { now_ms })
}

/// The process is alive.
#[derive(Serialize, ToSchema)]
struct Alive {
    /// `alive`
    status: &'static str,
}

/// Alive: the process answers, whatever the state of the servers behind it
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "service",
    responses((status = 200, description = "Alive", body = Alive)),
)]
pub async fn health() -> HttpResponse {
    HttpResponse::Ok().json(Alive { status: "alive" })
}

/// Whether the instance should receive requests, and if not, why.
#[derive(Serialize, ToSchema)]
struct Readiness {
    ready: bool,
    /// PostgreSQL answered the last heartbeat.
    postgres: bool,
    /// The database has all migrations of this program.
    schema: bool,
    /// Redis answered the last check of the sales.
    redis: bool,
    /// How much memory Redis has left: `ample`, `low` (above 75 %), or `scarce` (above 85 %: limiters make no new keys).
    redis_memory: &'static str,
    /// The instance is stopping.
    leaving: bool,
}

/// Ready: PostgreSQL and Redis answered the checks, and the database has this program's migrations
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "service",
    responses(
        (status = 200, description = "Ready", body = Readiness),
        (status = 503, description = "Not ready", body = Readiness),
    ),
)]
pub async fn readiness(app_state: Data<AppState>) -> HttpResponse {
    let body = app_state.health.readiness();
    if body.ready { HttpResponse::Ok().json(body) } else { HttpResponse::ServiceUnavailable().json(body) }
}

/// The service's metrics, for Prometheus
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "service",
    responses((status = 200, description = "Metrics", body = String, content_type = "text/plain; version=0.0.4")),
)]
pub async fn metrics(app_state: Data<AppState>) -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; version=0.0.4").body(app_state.metrics.text(Instant::now()))
}

pub async fn worker_metrics(metrics: Data<PrometheusHandle>) -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; version=0.0.4").body(metrics.render())
}

/// The buyer that the token is for.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TokenRequest {
    /// 1 to 128 bytes of UTF-8.
    #[schema(pattern = "^[^\\u0000-\\u001F\\u007F-\\u009F]{1,128}$", example = "alice")]
    user: String,
    #[serde(default)]
    #[schema(minimum = -9_007_199_254_740_991_i64, maximum = 9_007_199_254_740_991_i64)]
    level: i64,
}

/// A buyer's token.
#[derive(Serialize, ToSchema)]
struct Token {
    token: String,
    expires_at_ms: i64,
}

problems!(NoToken: InvalidRequest, NotFound, TooSlow, BodyTooLarge);

/// Issue a buyer's token
///
/// This address exists in development mode only.
#[utoipa::path(
    post,
    path = "/api/v1/dev/token",
    tag = "buying",
    request_body = TokenRequest,
    responses((status = 200, description = "Valid for a day", body = Token), NoToken),
)]
pub async fn dev_token(app_state: Data<AppState>, Body(body): Body) -> Answer {
    let asked: TokenRequest = json_object::from_body(&body).map_err(Problem::invalid)?;
    let user = UserId::parse(&asked.user)?;
    if asked.level.unsigned_abs() > LEVEL_MAX {
        return Err(Problem::invalid("level must be -9007199254740991 to 9007199254740991"));
    }
    let expires_at_s = app_state.clock.now_ms() / 1000 + DEV_TOKEN_S;
    let token = app_state.tokens.issue(&user, asked.level, expires_at_s).ok_or(Code::NotFound)?;
    Ok(HttpResponse::Ok().json(Token { token, expires_at_ms: expires_at_s * 1000 }))
}
