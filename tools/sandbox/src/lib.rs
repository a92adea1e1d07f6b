//! A stand-in for a bank, for development and tests. Its switches make the bank slow, limited and unreliable. The bank is a
//! server of its own with one file; docs/payments.md describes its promises.
//!
//! - `transfer` payments and refunds; `event` their changes; `book` their state, without I/O; `journal` the file;
//! - `limit` the rates and the log of arrivals; `switches` how the bank misbehaves;
//! - `bank` all of them under one lock; `calls` the HTTP interface; `callbacks` decisions and callbacks.

mod bank;
mod book;
mod callbacks;
mod calls;
mod event;
mod journal;
mod limit;
mod problem;
mod request;
mod switches;
mod transfer;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::{Server, ServerHandle};
use actix_web::{App, HttpServer, web};
use anyhow::{Context, ensure};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use bank::Bank;
use callbacks::CallbackSender;
use journal::Journal;
use seckill_webhook::Secret;
use switches::Switches;

/// Threads that answer calls. Two are enough: a call takes microseconds.
const WORKERS: usize = 2;
/// The most connections of each thread.
const CONNECTIONS_MAX: usize = 1024;
/// How long a client may take to send the head of a request before the bank closes the connection.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// How long answers in flight may take when the bank ends.
const SHUTDOWN_S: u64 = 5;

/// The section `[sandbox]` of config.default.toml, which describes each setting.
#[derive(Clone, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub bind: SocketAddr,
    pub data_file: String,
    pub callback_url: String,
    pub secret: String,
    pub pay_rate: u32,
    pub refund_rate: u32,
    pub confirm_ms: u64,
}

impl std::fmt::Debug for Settings {
    /// Leaves all fields out, so that the secret never reaches a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").finish_non_exhaustive()
    }
}

/// The bank, bound and ready to run.
pub struct Sandbox {
    bank: Arc<Bank>,
    server: Server,
    address: SocketAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Sandbox {
    /// Reads the file, binds the address, and resumes pending decisions and callbacks.
    ///
    /// # Errors
    /// The secret is malformed, the file cannot be used, or the address cannot be bound.
    pub fn bind(config: &Settings) -> anyhow::Result<Self> {
        let secret = Secret::parse(&config.secret).context("sandbox.secret")?;
        let (journal, book) = Journal::open(Path::new(&config.data_file))?;
        let listener = TcpListener::bind(config.bind)
            .with_context(|| format!("cannot listen on {} (sandbox.bind)", config.bind))?;
        let address = listener.local_addr()?;
        let switches = Switches::new(config.pay_rate, config.refund_rate, config.confirm_ms);
        let bank = Arc::new(Bank::new(journal, book, switches));
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());

        tasks.spawn(callbacks::decide(Arc::clone(&bank), stop.clone()));
        let callbacks =
            CallbackSender::new(Arc::clone(&bank), config.callback_url.clone(), secret.clone(), tasks.clone());
        tasks.spawn(callbacks.run(stop.clone()));

        let (secret, for_calls) = (web::Data::new(secret), web::Data::from(Arc::clone(&bank)));
        let server = HttpServer::new(move || {
            App::new()
                .app_data(for_calls.clone())
                .app_data(secret.clone())
                .app_data(web::PayloadConfig::new(problem::BODY_MAX_BYTES))
                .configure(calls::routes)
        })
        .workers(WORKERS)
        .disable_signals()
        .max_connections(CONNECTIONS_MAX)
        .client_request_timeout(CLIENT_TIMEOUT)
        .keep_alive(KEEP_ALIVE)
        .shutdown_timeout(SHUTDOWN_S)
        .listen(listener)?
        .run();
        Ok(Self { bank, server, address, stop, tasks })
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the bank while it runs. After `stop(true)`, answers in flight are still sent.
    pub fn stopper(&self) -> ServerHandle {
        self.server.handle()
    }

    /// Runs the bank until it is stopped.
    ///
    /// # Errors
    /// The file could not be written, or the server failed.
    pub async fn run(self) -> anyhow::Result<()> {
        tracing::info!(address = %self.address, "the sandbox channel is open");
        let handle = self.server.handle();
        let file_failed = async {
            self.bank.file_failed.cancelled().await;
            handle.stop(false).await;
        };
        let served = async {
            tokio::select! {
                served = self.server => served,
                () = file_failed => Ok(()),
            }
        }
        .await;
        // Callbacks in flight are cancelled. They have not ended, so they are sent after the next start.
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        ensure!(!self.bank.file_failed.is_cancelled(), "the sandbox's file (sandbox.data_file) cannot be written");
        served?;
        tracing::info!("the sandbox channel has stopped");
        Ok(())
    }
}
