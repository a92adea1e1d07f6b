//! A receiver of callbacks, which keeps them and answers as it is told.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use actix_web::http::StatusCode;
use actix_web::web::{self, Bytes, Data};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer};
use seckill_webhook::{Secret, SignatureError, verify};
use serde_json::Value;
use uuid::Uuid;

use crate::bank::SECRET;
use seckill_harness::eventually;

#[derive(Debug, Clone)]
pub struct Callback {
    pub at: Instant,
    pub id: String,
    /// Whether its signature is by the secret, over what came.
    pub believed: Result<(), SignatureError>,
    pub body: Value,
}

impl Callback {
    pub fn data(&self, field: &str) -> &Value {
        &self.body["data"][field]
    }
}

struct Desk {
    seen: Mutex<Vec<Callback>>,
    status: AtomicU16,
}

pub struct Receiver {
    pub url: String,
    desk: Arc<Desk>,
}

impl Receiver {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/callbacks", listener.local_addr().unwrap());
        let desk = Arc::new(Desk { seen: Mutex::default(), status: AtomicU16::new(200) });
        let data = Data::from(Arc::clone(&desk));
        let server = HttpServer::new(move || App::new().app_data(data.clone()).default_service(web::to(take)));
        tokio::spawn(server.workers(1).disable_signals().listen(listener).unwrap().run());
        Self { url, desk }
    }

    /// Answers so from now on.
    pub fn answer(&self, status: u16) {
        self.desk.status.store(status, Ordering::Relaxed);
    }

    pub fn seen(&self) -> Vec<Callback> {
        self.desk.seen.lock().unwrap().clone()
    }

    /// Callbacks of one payment or refund.
    pub fn of(&self, key: Uuid) -> Vec<Callback> {
        self.seen().into_iter().filter(|callback| *callback.data("key") == key.to_string()).collect()
    }

    /// Waits for so many of one payment or refund, at least.
    pub async fn wait_for(&self, key: Uuid, count: usize) -> Vec<Callback> {
        eventually(|| async {
            let seen = self.of(key);
            if seen.len() >= count { Ok(seen) } else { Err(format!("{} callbacks of {key}", seen.len())) }
        })
        .await
    }
}

async fn take(request: HttpRequest, body: Bytes, desk: Data<Desk>) -> HttpResponse {
    let at = Instant::now();
    let header = |name: &str| request.headers().get(name).unwrap().to_str().unwrap();
    let (id, secret) = (header("webhook-id"), Secret::parse(SECRET).unwrap());
    let now_s = chrono::Utc::now().timestamp();
    let believed = verify(&[secret], id, header("webhook-timestamp"), header("webhook-signature"), &body, now_s);
    let body = serde_json::from_slice(&body).unwrap();
    desk.seen.lock().unwrap().push(Callback { at, id: id.to_owned(), believed, body });
    HttpResponse::build(StatusCode::from_u16(desk.status.load(Ordering::Relaxed)).unwrap()).finish()
}
