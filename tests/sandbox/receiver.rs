//! A receiver that stores callbacks and answers them with a status that the test sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Instant;

use seckill_harness::receiver::{Arrival, Receiver as Server, Reply};
use seckill_webhook::{Secret, SignatureError, verify};
use serde_json::Value;
use uuid::Uuid;

use crate::bank::SECRET;
use seckill_harness::wait_until;

#[derive(Debug, Clone)]
pub struct Callback {
    pub at: Instant,
    pub id: String,
    /// Whether the signature matches the secret and the body.
    pub verified: Result<(), SignatureError>,
    pub body: Value,
}

impl Callback {
    fn of(arrival: Arrival) -> Self {
        let [id, at, signature] =
            ["id", "timestamp", "signature"].map(|name| arrival.header(&format!("webhook-{name}")));
        let (secret, now_s) = (Secret::parse(&SECRET).unwrap(), chrono::Utc::now().timestamp());
        let verified = verify(&[secret], &id, &at, &signature, &arrival.bytes, now_s);
        Self { at: arrival.at, id, verified, body: arrival.body }
    }

    pub fn data(&self, field: &str) -> &Value {
        &self.body["data"][field]
    }
}

pub struct Receiver {
    server: Server,
    status: Arc<AtomicU16>,
}

impl Receiver {
    pub fn start() -> Self {
        let status = Arc::new(AtomicU16::new(200));
        let answer = Arc::clone(&status);
        Self { server: Server::scripted(move |_, _| Reply::status(answer.load(Ordering::Relaxed))), status }
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    pub fn answer(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    pub fn seen(&self) -> Vec<Callback> {
        self.server.seen().into_iter().map(Callback::of).collect()
    }

    pub fn of(&self, key: Uuid) -> Vec<Callback> {
        self.seen().into_iter().filter(|callback| *callback.data("key") == key.to_string()).collect()
    }

    /// Waits until at least `count` callbacks of one payment or refund have arrived.
    pub async fn wait_for(&self, key: Uuid, count: usize) -> Vec<Callback> {
        wait_until(|| async { self.of(key) }, |seen| seen.len() >= count).await
    }
}
