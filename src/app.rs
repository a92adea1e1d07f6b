//! The composition root: connect, wire, bind, run, and stop without losing what was accepted.

mod workers;

pub use workers::{WORKERS, work};

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix_web::dev::{Server, ServerHandle};
use actix_web::{App, HttpServer, web};
use anyhow::Context;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{Console, SessionTerms};
use crate::channel::Channels;
use crate::config::{self, Config};
use crate::flow::FlowError;
use crate::flow::book::Book;
use crate::flow::figures;
use crate::flow::guard::Guard;
use crate::gate::desk::Desk;
use crate::gate::limiter::Limiter;
use crate::gate::{Gate, GateError};
use crate::http::{self, Api, Health, Reception, Tokens};
use crate::ledger::Ledger;
use crate::ledger::commit::Committer;
use crate::ledger::notices::{Doorbell, Topic, Wakers};
use crate::pages;
use crate::pay::desk::PayDesk;
use crate::pay::{Cashier, PayTerms};
use crate::sale::barred::Barred;
use crate::sale::catalog::Catalog;
use crate::sale::follow::Followers;
use crate::sale::refill;
use crate::sale::till::{Confirmer, SoldOutView, Till};
use crate::sale::{Shop, Step};
use crate::telemetry;
use crate::worker::repeat;

/// Handles on the gate and the ledger; nothing is connected yet.
pub fn shop(config: &Config) -> anyhow::Result<Shop> {
    Ok(Shop { ledger: Ledger::new(&config.database)?, gate: Gate::new(&config.redis, &config.purchase)? })
}

/// What all parts of a process share.
struct Parts {
    config: Config,
    shop: Shop,
    bell: Doorbell,
    wakers: Wakers,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Parts {
    fn assemble(config: Config) -> anyhow::Result<Self> {
        let shop = shop(&config)?;
        let parts = Self {
            config,
            shop,
            bell: Doorbell::default(),
            wakers: Wakers::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let (ledger, stop) = (&parts.shop.ledger, &parts.stop);
        parts.tasks.spawn(parts.bell.clone().carry(ledger.clone(), stop.clone()));
        parts.tasks.spawn(parts.wakers.clone().listen(ledger.clone(), stop.clone()));
        Ok(parts)
    }

    /// Keeps this Redis whole, and says in `health` whether it is.
    fn guard(&self, health: Option<Arc<Health>>) {
        let guard = Arc::new(Mutex::new(refill::Guard::new(self.shop.clone(), self.config.reconcile.retire_after_ms)));
        // Doubt about the server is looked into at once, a new sale too, everything every second.
        let wake = self.wakers.subscribe(Topic::Catalog);
        let (gate, wakers, stop) = (self.shop.gate.clone(), self.wakers.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            while stop.run_until_cancelled(gate.doubted()).await.is_some() {
                wakers.wake(Topic::Catalog);
                tokio::time::sleep(Duration::from_millis(20)).await; // one look answers a crowd of doubts
            }
        });
        self.tasks.spawn(repeat("guard", Duration::from_secs(1), Some(wake), self.stop.clone(), move || {
            let (guard, health) = (Arc::clone(&guard), health.clone());
            async move {
                let seen = guard.lock().await.look().await;
                if let Some(health) = health {
                    health.gate.store(seen.is_ok(), Ordering::Relaxed);
                }
                seen.map(|()| Step::Idle)
            }
        }));
    }

    /// Ends what goes on by itself, and waits for what it holds.
    async fn shut(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.shop.ledger.close().await;
    }
}

/// The HTTP service, bound and ready to run.
pub struct Service {
    parts: Parts,
    server: Server,
    address: SocketAddr,
    catalog: Arc<Catalog>,
    health: Arc<Health>,
    followers: Followers,
}

/// Ends a service from outside.
#[derive(Clone)]
pub struct Stopper {
    handle: ServerHandle,
    health: Arc<Health>,
    followers: Followers,
}

impl Stopper {
    /// Takes no more connections, ends streams, lets other answers under way finish, and ends.
    pub async fn stop(self) {
        self.health.leaving.store(true, Ordering::Relaxed);
        // Answers that have no end of their own.
        self.followers.close();
        self.handle.stop(true).await;
    }
}

impl Service {
    /// Loads the catalogue, binds the address, and starts what a serving instance needs beside its handlers.
    pub async fn bind(config: Config, with_workers: bool) -> anyhow::Result<Self> {
        let metrics = telemetry::metrics();
        let tokens = Tokens::new(&config.auth.jwt_secret, &config.auth.jwt_public_key, config.dev)?;
        let listener = TcpListener::bind(config.http.bind)
            .with_context(|| format!("cannot listen on {} (http.bind)", config.http.bind))?;
        let address = listener.local_addr()?;
        let parts = Parts::assemble(config)?;
        let config = &parts.config;
        let catalog = Catalog::load(&parts.shop, config.reconcile.retire_after_ms)
            .await
            .context("cannot load the catalogue from PostgreSQL")?;
        let catalog = Arc::new(catalog);
        let health = Arc::new(Health::default());
        health.ledger.store(true, Ordering::Relaxed);

        let book = Arc::new(Book::load(parts.shop.ledger.clone(), catalog.instance()).await?);
        let limiter = Limiter::new(&config.redis, &config.flow)?;
        let console = Console::new(parts.shop.ledger.clone(), limiter.clone(), session_terms(&config.admin))?;
        let cashier = cashier(config, parts.shop.ledger.clone(), parts.bell.clone())?;
        let guard = Guard::new(Arc::clone(&book), limiter, config.flow.queue_max);

        let committer = Committer::start(
            &parts.shop.ledger,
            config.purchase.committers,
            config.purchase.commit_batch_max,
            config.purchase.queue_max,
            &parts.bell,
            &parts.tasks,
        );
        parts.tasks.spawn(upkeep(metrics.clone(), parts.stop.clone()));
        let (confirmer, confirming) = Confirmer::new(parts.shop.gate.clone());
        parts.tasks.spawn(confirming);
        keep_up(&parts, &catalog, &health, &committer);
        follow_policies(&parts, &book);
        let followers = Followers::new(parts.shop.ledger.clone(), config.http.streams_max);
        feed(&parts, &followers);
        parts.guard(Some(Arc::clone(&health)));
        if with_workers {
            workers::spawn_workers(&parts, None, &cashier);
        }

        let reception = web::Data::new(Reception {
            tokens,
            trusted_proxies: config.http.trusted_proxies.clone(),
            health: Arc::clone(&health),
            metrics,
            api: Api::new(config.dev, pages::document())?,
            guard,
            console,
            pay_desk: PayDesk::open(cashier.clone(), &parts.tasks),
            cashier,
            followers: followers.clone(),
            dev: config.dev,
            body_max_bytes: config.http.body_max_bytes,
            client_timeout: Duration::from_millis(config.http.client_timeout_ms),
        });
        let seller = Seller {
            shop: parts.shop.clone(),
            catalog: Arc::clone(&catalog),
            committer,
            confirmer,
            order_id_secret: parts.shop.ledger.order_id_secret().await?,
            retire_after_ms: config.reconcile.retire_after_ms.cast_signed(),
        };
        let dev = config.dev;
        let server = HttpServer::new(move || {
            let seller = seller.clone();
            App::new()
                .app_data(reception.clone())
                .data_factory(move || std::future::ready(seller.clone().till()))
                .configure(http::routes(dev))
                .configure(pages::routes(http::other_methods))
        });
        let http = &config.http;
        let server = match http.workers {
            0 => server,
            workers => server.workers(workers),
        };
        let server = server
            .disable_signals()
            .backlog(4096)
            .max_connections(http.max_connections)
            .client_request_timeout(Duration::from_millis(http.client_timeout_ms))
            .keep_alive(Duration::from_millis(http.keep_alive_ms))
            .shutdown_timeout(http.shutdown_timeout_ms.div_ceil(1000))
            .listen(listener)?
            .run();
        Ok(Self { parts, server, address, catalog, health, followers })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn stopper(&self) -> Stopper {
        let (health, followers) = (Arc::clone(&self.health), self.followers.clone());
        Stopper { handle: self.server.handle(), health, followers }
    }

    /// Serves until stopped; then winners under way are committed, and the rest is let go in good order.
    pub async fn run(self) -> anyhow::Result<()> {
        tracing::info!(address = %self.address, "serving");
        self.server.await?;
        if let Err(error) = self.catalog.leave().await {
            tracing::debug!(%error, "left without a word");
        }
        self.parts.shut().await;
        tracing::info!("stopped");
        Ok(())
    }
}

/// Payments and refunds, for commands: what they leave to do is found without a bell.
pub fn till_of_money(config: &Config) -> anyhow::Result<Cashier> {
    cashier(config, shop(config)?.ledger, Doorbell::default())
}

/// Who takes payments and refunds.
fn cashier(config: &Config, ledger: Ledger, bell: Doorbell) -> anyhow::Result<Cashier> {
    let terms = PayTerms {
        currency: config.payments.currency.clone(),
        wait_ms: config.payments.wait_ms,
        ask_after: Duration::from_millis(config.payments.ask_after_ms),
        on_its_way: Duration::from_millis(config.payments.on_its_way_ms),
    };
    let channels = Channels::new(&config.channels)?;
    Ok(Cashier::new(ledger, channels, bell, terms))
}

fn session_terms(admin: &config::Admin) -> SessionTerms {
    SessionTerms {
        session_ms: admin.session_ms.cast_signed(),
        idle_ms: admin.idle_ms.cast_signed(),
        login_limit: admin.login_limit,
        login_window_ms: admin.login_window_ms.cast_signed(),
    }
}

/// What a worker thread's till is made from.
#[derive(Clone)]
struct Seller {
    shop: Shop,
    catalog: Arc<Catalog>,
    committer: Committer,
    confirmer: Confirmer,
    order_id_secret: [u8; 32],
    retire_after_ms: i64,
}

impl Seller {
    fn till(self) -> Result<Till, GateError> {
        Ok(Till {
            desk: Desk::open(self.shop.gate.clone())?,
            gate: self.shop.gate,
            ledger: self.shop.ledger,
            catalog: self.catalog,
            committer: self.committer,
            confirmer: self.confirmer,
            order_id_secret: self.order_id_secret,
            retire_after_ms: self.retire_after_ms,
            sold_out: SoldOutView::default(),
            barred: Barred::default(),
        })
    }
}

/// Folds what histograms have collected, so that their memory stays bounded when nobody reads the metrics.
async fn upkeep(metrics: PrometheusHandle, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(Duration::from_secs(5))).await.is_some() {
        metrics.run_upkeep();
    }
}

/// The heartbeat: the catalogue, the time, and whether PostgreSQL is there.
fn keep_up(parts: &Parts, catalog: &Arc<Catalog>, health: &Arc<Health>, committer: &Committer) {
    let (catalog, health, committer) = (Arc::clone(catalog), Arc::clone(health), committer.clone());
    let wake = parts.wakers.subscribe(Topic::Catalog);
    parts.tasks.spawn(repeat("catalog", Duration::from_secs(1), Some(wake), parts.stop.clone(), move || {
        let (catalog, health, committer) = (Arc::clone(&catalog), Arc::clone(&health), committer.clone());
        async move {
            let kept = catalog.keep_up().await;
            committer.set_healthy(kept.is_ok());
            health.ledger.store(kept.is_ok(), Ordering::Relaxed);
            kept
        }
    }));
}

/// Tells those who follow their orders what is new: when somebody says that there is something, and every second.
fn feed(parts: &Parts, followers: &Followers) {
    let (followers, wake) = (followers.clone(), parts.wakers.subscribe(Topic::Orders));
    parts.tasks.spawn(repeat("events", Duration::from_secs(1), Some(wake), parts.stop.clone(), move || {
        let followers = followers.clone();
        async move { followers.look().await }
    }));
}

/// Goes by the newest policies; those of purchases are the gate's to keep. And writes down what was asked of them.
fn follow_policies(parts: &Parts, book: &Arc<Book>) {
    let (book, gate) = (Arc::clone(book), parts.shop.gate.clone());
    let otherwise = gate.limits();
    gate.set_limits(book.purchase_limits(otherwise));
    let counting = (Arc::clone(&book), gate.clone());
    let wake = parts.wakers.subscribe(Topic::Policies);
    parts.tasks.spawn(repeat("policies", Duration::from_secs(1), Some(wake), parts.stop.clone(), move || {
        let (book, gate) = (Arc::clone(&book), gate.clone());
        async move {
            if book.keep_up().await? {
                gate.set_limits(book.purchase_limits(otherwise));
            }
            Ok::<_, FlowError>(Step::Idle)
        }
    }));
    let (book, gate) = counting;
    parts.tasks.spawn(repeat("count", Duration::from_secs(1), None, parts.stop.clone(), move || {
        let (book, gate) = (Arc::clone(&book), gate.clone());
        async move { figures::flush(&book, &gate).await.map(|()| Step::Idle) }
    }));
}
