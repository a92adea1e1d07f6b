//! The bank: `seckill channel-sandbox` as a process, and calls that read its state.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Client;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use seckill_harness::eventually;
use seckill_harness::folder::{Folder, free_address};
use seckill_harness::running::Running;

/// A bank process. Dropping the value kills the process and removes its folder.
pub struct Bank {
    pub address: SocketAddr,
    child: Option<Running>,
    folder: Folder,
    http: Client,
}

impl Bank {
    /// Reserves an address. `open` starts the bank, once the address for its callbacks is known.
    pub fn reserve_address() -> Self {
        Self { address: free_address(), child: None, folder: Folder::new("bank"), http: Client::new() }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub async fn open(&mut self, callbacks: &str, pay_rate: u32, refund_rate: u32) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
        command
            .arg("channel-sandbox")
            .env_clear()
            .env("SECKILL_DEV", "1")
            .env("SECKILL_SANDBOX__BIND", self.address.to_string())
            .env("SECKILL_SANDBOX__DATA_FILE", self.folder.file("bank.jsonl"))
            .env("SECKILL_SANDBOX__CALLBACK_URL", callbacks)
            .env("SECKILL_SANDBOX__PAY_RATE", pay_rate.to_string())
            .env("SECKILL_SANDBOX__REFUND_RATE", refund_rate.to_string())
            .env("SECKILL_SANDBOX__CONFIRM_MS", "20")
            .env("RUST_LOG", "error")
            .stdout(Stdio::null());
        self.child = Some(Running::start(&mut command));
        let alive = format!("{}/healthz", self.url());
        eventually(|| async {
            let answer = self.http.get(&alive).send().await.map_err(|e| e.to_string())?;
            answer.status().is_success().then_some(()).ok_or_else(|| answer.status().to_string())
        })
        .await;
    }

    pub fn close(&mut self) {
        self.child = None;
    }

    /// In place of the bank, answers each request with 503, until the guard is dropped. Returns the number of requests, too.
    pub async fn answer_503(&mut self) -> (AbortOnDropHandle<()>, Arc<AtomicUsize>) {
        self.close();
        let (listener, asked) = (TcpListener::bind(self.address).await.unwrap(), Arc::new(AtomicUsize::new(0)));
        let counter = Arc::clone(&asked);
        let answering = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                counter.fetch_add(1, Ordering::Relaxed);
                _ = stream.read(&mut [0; 8192]).await;
                _ = stream.write_all(b"HTTP/1.1 503 Away\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
            }
        });
        (AbortOnDropHandle::new(answering), asked)
    }

    pub async fn get(&self, path: &str) -> Value {
        self.http.get(format!("{}{path}", self.url())).send().await.unwrap().json().await.unwrap()
    }

    pub async fn switch(&self, switches: Value) {
        let put = self.http.put(format!("{}/v1/admin/switches", self.url())).json(&switches);
        let answer = put.send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    }

    /// The most requests of a kind in any second, and the shortest time between two of them in microseconds.
    pub async fn peak(&self, kind: &str) -> (u64, u64) {
        let peak = self.get(&format!("/v1/arrivals/peak?kind={kind}")).await;
        (peak["peak"].as_u64().unwrap(), peak["closest_us"].as_u64().unwrap_or(u64::MAX))
    }

    pub async fn arrivals(&self, kind: &str, outcome: &str) -> usize {
        let (mut after, mut count) = (0, 0);
        loop {
            let page = self.get(&format!("/v1/arrivals?kind={kind}&after={after}&limit=10000")).await;
            let arrivals = page["arrivals"].as_array().unwrap();
            count += arrivals.iter().filter(|arrival| arrival["outcome"] == outcome).count();
            match page["next"].as_u64() {
                Some(next) => after = next,
                None => return count,
            }
        }
    }

    /// The number of payments, the number of refunds, and the payments less the refunds in cents.
    pub async fn totals(&self) -> (usize, usize, i64) {
        let (mut after, mut totals) = (0, (0, 0, 0));
        loop {
            let page = self.get(&format!("/v1/ledger?after={after}&limit=1000")).await;
            for entry in page["entries"].as_array().unwrap() {
                let cents = entry["amount_cents"].as_i64().unwrap();
                if entry["kind"] == "refund" {
                    totals.1 += 1;
                    totals.2 -= cents;
                } else {
                    totals.0 += 1;
                    totals.2 += cents;
                }
            }
            match page["next"].as_u64() {
                Some(next) => after = next,
                None => return totals,
            }
        }
    }
}
