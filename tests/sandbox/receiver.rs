//! A receiver that stores callbacks and answers them with a status that the test sets.

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
    /// Whether the signature matches the secret and the body.
    pub verified: Result<(), SignatureError>,
    pub body: Value,
}

impl Callback {
    pub fn data(&self, field: &str) -> &Value {
        &self.body["data"][field]
    }
}

struct ReceiverState {
    seen: Mutex<Vec<Callback>>,
    status: AtomicU16,
}

pub struct Receiver {
    pub url: String,
    state: Arc<ReceiverState>,
}

impl Receiver {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/callbacks", listener.local_addr().unwrap());
        let state = Arc::new(ReceiverState { seen: Mutex::default(), status: AtomicU16::new(200) });
        let data = Data::from(Arc::clone(&state));
        let server = HttpServer::new(move || App::new().app_data(data.clone()).default_service(web::to(receive)));
        tokio::spawn(server.workers(1).disable_signals().listen(listener).unwrap().run());
        Self { url, state }
    }

    pub fn answer(&self, status: u16) {
        self.state.status.store(status, Ordering::Relaxed);
    }

    pub fn seen(&self) -> Vec<Callback> {
        self.state.seen.lock().unwrap().clone()
    }

    /// The callbacks of one payment or refund.
    pub fn of(&self, key: Uuid) -> Vec<Callback> {
        self.seen().into_iter().filter(|callback| *callback.data("key") == key.to_string()).collect()
    }

    /// Waits until at least `count` callbacks of one payment or refund have arrived.
    pub async fn wait_for(&self, key: Uuid, count: usize) -> Vec<Callback> {
        eventually(|| async {
            let seen = self.of(key);
            if seen.len() >= count { Ok(seen) } else { Err(format!("{} callbacks of {key}", seen.len())) }
        })
        .await
    }
}

async fn receive(request: HttpRequest, body: Bytes, state: Data<ReceiverState>) -> HttpResponse {
    let at = Instant::now();
    let header = |name: &str| request.headers().get(name).unwrap().to_str().unwrap();
    let (id, secret) = (header("webhook-id"), Secret::parse(&SECRET).unwrap());
    let now_s = chrono::Utc::now().timestamp();
    let verified = verify(&[secret], id, header("webhook-timestamp"), header("webhook-signature"), &body, now_s);
    let body = serde_json::from_slice(&body).unwrap();
    state.seen.lock().unwrap().push(Callback { at, id: id.to_owned(), verified, body });
    HttpResponse::build(StatusCode::from_u16(state.status.load(Ordering::Relaxed)).unwrap()).finish()
}
