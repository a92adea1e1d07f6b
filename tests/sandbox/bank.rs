//! The bank under test, in this process or as a program, and a client that calls the bank.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use reqwest::{Client, Method, RequestBuilder};
use seckill_config as config;
use seckill_sandbox::Sandbox;
use seckill_webhook::Secret;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::receiver::Receiver;
use seckill_harness::folder::Folder;
use seckill_harness::running::Running;
use seckill_harness::{Environment, eventually, webhook_secret};

/// Outside development mode the bank refuses secrets that are published here.
pub static SECRET: LazyLock<String> = LazyLock::new(webhook_secret);

pub type Answer = (u16, Value);

pub fn file(folder: &Folder) -> String {
    folder.file("bank.jsonl")
}

pub fn settings(folder: &Folder, receiver: &Receiver, more: &[(&str, &str)]) -> Environment {
    let (url, file) = (receiver.url(), file(folder));
    let own = [
        ("SECKILL_SANDBOX__BIND", "127.0.0.1:0"),
        ("SECKILL_SANDBOX__SECRET", SECRET.as_str()),
        ("SECKILL_SANDBOX__CALLBACK_URL", &url),
        ("SECKILL_SANDBOX__CONFIRM_MS", "20"),
        ("SECKILL_SANDBOX__PAY_RATE", "1000"),
        ("SECKILL_SANDBOX__REFUND_RATE", "1000"),
        ("SECKILL_SANDBOX__DATA_FILE", &file),
    ];
    own.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

pub struct Caller {
    http: Client,
    base: String,
}

impl Caller {
    pub fn to(address: &str) -> Self {
        Self { http: Client::new(), base: format!("http://{address}") }
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base))
    }

    pub fn signed(&self, path: &str, key: Uuid, body: &str) -> RequestBuilder {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed();
        let id = Uuid::new_v4().to_string();
        let signature = Secret::parse(&SECRET).unwrap().sign(&id, now_s, body.as_bytes());
        self.request(Method::POST, path)
            .header("webhook-id", id)
            .header("webhook-timestamp", now_s.to_string())
            .header("webhook-signature", signature)
            .header("idempotency-key", key.to_string())
            .body(body.to_owned())
    }

    pub async fn post(&self, path: &str, key: Uuid, body: &Value) -> Answer {
        send(self.signed(path, key, &body.to_string())).await
    }

    pub async fn pay(&self, key: Uuid, amount_cents: i64) -> Answer {
        self.post("/v1/payments", key, &payment(amount_cents)).await
    }

    pub async fn refund(&self, key: Uuid, payment: Uuid, amount_cents: i64) -> Answer {
        let body = json!({ "payment_key": payment, "amount_cents": amount_cents, "currency": "CNY" });
        self.post("/v1/refunds", key, &body).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    pub async fn switch(&self, switches: Value) -> Answer {
        send(self.request(Method::PUT, "/v1/admin/switches").body(switches.to_string())).await
    }

    pub async fn admin(&self, path: &str, body: Value) -> Answer {
        send(self.request(Method::POST, &format!("/v1/admin/{path}")).body(body.to_string())).await
    }

    pub async fn paid(&self, amount_cents: i64) -> Uuid {
        let key = Uuid::new_v4();
        assert_eq!(self.pay(key, amount_cents).await.0, 202);
        self.decided("payments", key).await;
        key
    }

    /// Waits until a payment or refund is decided. Returns its document.
    pub async fn decided(&self, what: &str, key: Uuid) -> Value {
        eventually(|| async {
            let (status, document) = self.get(&format!("/v1/{what}/{key}")).await;
            let decided = status == 200 && document["status"] != "pending";
            if decided { Ok(document) } else { Err(document.to_string()) }
        })
        .await
    }

    pub async fn ledger(&self) -> Vec<Value> {
        let (status, page) = self.get("/v1/ledger").await;
        assert_eq!((status, &page["next"]), (200, &Value::Null));
        page["entries"].as_array().unwrap().clone()
    }

    pub async fn outcomes(&self, kind: &str) -> Vec<String> {
        let (status, page) = self.get(&format!("/v1/arrivals?kind={kind}")).await;
        assert_eq!(status, 200);
        let outcome = |arrival: &Value| arrival["outcome"].as_str().unwrap().to_owned();
        page["arrivals"].as_array().unwrap().iter().map(outcome).collect()
    }
}

/// The body of a payment. The order is always the same, because requests with one key must have the same body.
pub fn payment(amount_cents: i64) -> Value {
    json!({ "order_id": Uuid::from_u128(7), "amount_cents": amount_cents, "currency": "CNY" })
}

pub async fn send(request: RequestBuilder) -> Answer {
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

pub struct Bank {
    pub calls: Caller,
    pub receiver: Receiver,
    _folder: Folder,
}

impl Bank {
    pub async fn start(more: &[(&str, &str)]) -> Self {
        let (folder, receiver) = (Folder::new("sandbox"), Receiver::start());
        let sandbox = Sandbox::bind(&config::sandbox_settings(&settings(&folder, &receiver, more)).unwrap()).unwrap();
        let calls = Caller::to(&sandbox.address().to_string());
        tokio::spawn(sandbox.run());
        Self { calls, receiver, _folder: folder }
    }
}

pub struct Program {
    pub process: Running,
    pub calls: Caller,
}

impl Program {
    pub fn command(settings: &Environment) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
        command.arg("channel-sandbox").env_clear().envs(settings).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Starts the bank, and reads its address from its log. Returns the log lines up to that one.
    pub fn start(settings: &Environment) -> (Self, Vec<String>) {
        let mut process = Running::start(&mut Self::command(settings));
        let (mut lines, mut log) = (BufReader::new(process.0.stderr.take().unwrap()).lines(), Vec::new());
        let address = loop {
            let line = lines.next().expect("the bank ended before it logged its address").unwrap();
            log.push(line.clone());
            if let Some((_, address)) = line.split_once("address=") {
                break address.to_owned();
            }
        };
        // Reads the rest of the log, because a process blocks when it writes to a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        (Self { process, calls: Caller::to(&address) }, log)
    }
}
