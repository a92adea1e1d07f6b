//! A stand-in for a bank, for development and tests: slow, limited and unreliable, as its switches say. It is a server of its
//! own with one file; docs/channel.md describes what it promises.
//!
//! - `transfer` payments and refunds; `event` changes of them; `book` their state, pure; `journal` the file;
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
use anyhow::Context;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use bank::Bank;
use callbacks::CallbackSender;
use journal::Journal;
use seckill_webhook::Secret;
use switches::Switches;

/// Threads that answer; each call is microseconds and a wait for the disk.
const WORKERS: usize = 2;
/// Connections of each; they also bound what waits for the file.
const CONNECTIONS_MAX: usize = 1024;
/// A client that has not sent its request's head by then is cut off.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// How long answers under way may take when it ends.
const SHUTDOWN_S: u64 = 5;

/// How the bank is opened.
#[derive(Clone, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where it listens.
    pub bind: SocketAddr,
    /// The file of the bank's books.
    pub data_file: String,
    /// Where callbacks are posted to.
    pub callback_url: String,
    /// Verifies requests and signs callbacks; `whsec_` and base64.
    pub secret: String,
    /// Payments accepted in any second.
    pub pay_rate: u32,
    /// Refunds accepted in any second.
    pub refund_rate: u32,
    /// How long after a request the bank decides, in milliseconds.
    pub confirm_ms: u64,
}

impl std::fmt::Debug for Settings {
    /// Holds a secret, which never reaches a log.
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

/// Ends a bank from outside.
#[derive(Clone)]
pub struct Stopper(ServerHandle);

impl Stopper {
    /// Takes no more connections, lets answers under way finish, and ends.
    pub async fn stop(self) {
        self.0.stop(true).await;
    }
}

impl Sandbox {
    /// Reads the file, binds the address, and goes on with what was pending.
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
                .app_data(request::bound())
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

    pub fn stopper(&self) -> Stopper {
        Stopper(self.server.handle())
    }

    /// Runs the bank until stopped, or until the file cannot be written.
    pub async fn run(self) -> anyhow::Result<()> {
        tracing::info!(address = %self.address, "the sandbox channel is open");
        let handle = self.server.handle();
        let broken = async {
            self.bank.journal().ended().await;
            handle.stop(false).await;
        };
        let served = async {
            tokio::select! {
                served = self.server => served,
                () = broken => Ok(()),
            }
        }
        .await;
        // Callbacks under way are broken off; they are still owed, and are sent after the next start.
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        let bank = self.bank;
        let written = tokio::task::spawn_blocking(move || bank.journal().close()).await?;
        written.context("the sandbox's file (sandbox.data_file) cannot be written")?;
        served?;
        tracing::info!("stopped");
        Ok(())
    }
}
