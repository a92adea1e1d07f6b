//! The service itself: its time, its health, its figures, and tokens in development mode.

use std::sync::atomic::{AtomicBool, Ordering};

use actix_web::HttpResponse;
use actix_web::http::header::CACHE_CONTROL;
use actix_web::web::Data;
use serde::Deserialize;
use serde_json::json;

use super::Reception;
use super::extract::Body;
use super::problem::Problem;
use crate::domain::ids::UserId;
use crate::sale::till::Till;

/// How long a development token is good for.
const DEV_TOKEN_S: i64 = 86_400;

/// What this instance's loops have found out about it.
#[derive(Default)]
pub struct Health {
    /// PostgreSQL answered the last heartbeat.
    pub ledger: AtomicBool,
    /// Redis was found whole at the last look.
    pub gate: AtomicBool,
    /// It is on its way out, and should be sent nothing more.
    pub leaving: AtomicBool,
}

impl Health {
    fn is_ready(&self) -> bool {
        self.ledger.load(Ordering::Relaxed)
            && self.gate.load(Ordering::Relaxed)
            && !self.leaving.load(Ordering::Relaxed)
    }
}

pub async fn time(till: Data<Till>) -> HttpResponse {
    let now_ms = till.catalog.clock.now_ms();
    HttpResponse::Ok().insert_header((CACHE_CONTROL, "no-store")).json(json!({ "now_ms": now_ms }))
}

/// Alive: the process answers, whatever stands behind it.
pub async fn alive() -> HttpResponse {
    HttpResponse::Ok().json(json!({ "status": "alive" }))
}

/// Ready: a purchase sent here now would be served.
pub async fn ready(reception: Data<Reception>) -> HttpResponse {
    let health = &reception.health;
    let body = json!({
        "ready": health.is_ready(),
        "postgres": health.ledger.load(Ordering::Relaxed),
        "redis": health.gate.load(Ordering::Relaxed),
        "leaving": health.leaving.load(Ordering::Relaxed),
    });
    if health.is_ready() { HttpResponse::Ok().json(body) } else { HttpResponse::ServiceUnavailable().json(body) }
}

pub async fn metrics(reception: Data<Reception>) -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; version=0.0.4").body(reception.metrics.render())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenRequest {
    user: String,
    #[serde(default)]
    level: i64,
}

/// A buyer's token for the asking. This route exists in development mode only.
pub async fn dev_token(
    till: Data<Till>,
    reception: Data<Reception>,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    let asked: TokenRequest = serde_json::from_slice(&body).map_err(Problem::invalid)?;
    let user = UserId::parse(&asked.user)?;
    let expires_at_s = till.catalog.clock.now_ms() / 1000 + DEV_TOKEN_S;
    let token = reception.tokens.issue(&user, asked.level, expires_at_s).ok_or(Problem::not_found())?;
    Ok(HttpResponse::Ok().json(json!({ "token": token, "expires_at_ms": expires_at_s * 1000 })))
}
