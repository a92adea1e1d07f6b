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
use crate::flow::permits::Permits;
use crate::flow::policy_cache::PolicyCache;
use crate::flow::policy_counts;
use crate::gate::limiter::Limiter;
use crate::gate::reserve_batcher::ReserveBatcher;
use crate::gate::{Gate, GateError};
use crate::http::{self, Api, AppState, Health, Tokens};
use crate::ledger::Ledger;
use crate::ledger::notices::{Listener, Notifier, Topic};
use crate::ledger::orders::commit::Committer;
use crate::pages;
use crate::pay::payment_batcher::PaymentBatcher;
use crate::pay::{PayTerms, PaymentService};
use crate::sale::catalog::Catalog;
use crate::sale::confirmer::Confirmer;
use crate::sale::order_streams::OrderStreams;
use crate::sale::refill_supervisor::RefillSupervisor;
use crate::sale::refusal_cache::RefusalCache;
use crate::sale::sold_out_view::SoldOutView;
use crate::sale::thread_state::ThreadState;
use crate::sale::{Step, Stores};
use crate::telemetry;
use crate::worker::repeat;

/// Handles on the gate and the ledger; nothing is connected yet.
pub fn stores(config: &Config) -> anyhow::Result<Stores> {
    Ok(Stores { ledger: Ledger::new(&config.database)?, gate: Gate::new(&config.redis, &config.purchase)? })
}

/// What all parts of a process share.
struct Parts {
    config: Config,
    stores: Stores,
    notifier: Notifier,
    listener: Listener,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Parts {
    fn assemble(config: Config) -> anyhow::Result<Self> {
        let stores = stores(&config)?;
        let parts = Self {
            config,
            stores,
            notifier: Notifier::default(),
            listener: Listener::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let (ledger, stop) = (&parts.stores.ledger, &parts.stop);
        parts.tasks.spawn(parts.notifier.clone().run(ledger.clone(), stop.clone()));
        parts.tasks.spawn(parts.listener.clone().listen(ledger.clone(), stop.clone()));
        Ok(parts)
    }

    /// Keeps this Redis whole, and says in `health` whether it is.
    fn supervise_refills(&self, health: Option<Arc<Health>>) {
        let supervisor =
            Arc::new(Mutex::new(RefillSupervisor::new(self.stores.clone(), self.config.reconcile.retire_after_ms)));
        // Doubt about the server is looked into at once, a new sale too, everything every second.
        let wake = self.listener.subscribe(Topic::Catalog);
        let (gate, listener, stop) = (self.stores.gate.clone(), self.listener.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            while stop.run_until_cancelled(gate.doubted()).await.is_some() {
                listener.wake(Topic::Catalog);
                tokio::time::sleep(Duration::from_millis(20)).await; // one look answers a crowd of doubts
            }
        });
        self.tasks.spawn(repeat("guard", Duration::from_secs(1), Some(wake), self.stop.clone(), move || {
            let (supervisor, health) = (Arc::clone(&supervisor), health.clone());
            async move {
                let seen = supervisor.lock().await.check_sales().await;
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
        self.stores.ledger.close().await;
    }
}

/// The HTTP service, bound and ready to run.
pub struct Service {
    parts: Parts,
    server: Server,
    address: SocketAddr,
    catalog: Arc<Catalog>,
    health: Arc<Health>,
    followers: OrderStreams,
}

/// Ends a service from outside.
#[derive(Clone)]
pub struct Stopper {
    handle: ServerHandle,
    health: Arc<Health>,
    followers: OrderStreams,
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
        let catalog = Catalog::load(&parts.stores, config.reconcile.retire_after_ms)
            .await
            .context("cannot load the catalogue from PostgreSQL")?;
        let catalog = Arc::new(catalog);
        let health = Arc::new(Health::default());
        health.ledger.store(true, Ordering::Relaxed);

        let policies = Arc::new(PolicyCache::load(parts.stores.ledger.clone(), catalog.instance()).await?);
        let limiter = Limiter::new(&config.redis, &config.flow)?;
        let console = Console::new(parts.stores.ledger.clone(), limiter.clone(), session_terms(&config.admin))?;
        let payment_service = payment_service_on(config, parts.stores.ledger.clone(), parts.notifier.clone())?;
        let permits = Permits::new(Arc::clone(&policies), limiter, config.flow.queue_max);

        let committer = Committer::start(
            &parts.stores.ledger,
            config.purchase.committers,
            config.purchase.commit_batch_max,
            config.purchase.queue_max,
            &parts.notifier,
            &parts.tasks,
        );
        parts.tasks.spawn(upkeep(metrics.clone(), parts.stop.clone()));
        let (confirmer, confirming) = Confirmer::new(parts.stores.gate.clone());
        parts.tasks.spawn(confirming);
        keep_up(&parts, &catalog, &health, &committer);
        follow_policies(&parts, &policies);
        let followers = OrderStreams::new(parts.stores.ledger.clone(), config.http.streams_max);
        feed(&parts, &followers);
        parts.supervise_refills(Some(Arc::clone(&health)));
        if with_workers {
            workers::spawn_workers(&parts, None, &payment_service);
        }

        let app_state = web::Data::new(AppState {
            tokens,
            trusted_proxies: config.http.trusted_proxies.clone(),
            health: Arc::clone(&health),
            metrics,
            api: Api::new(config.dev, pages::document())?,
            permits,
            console,
            payment_batcher: PaymentBatcher::open(payment_service.clone(), &parts.tasks),
            payment_service,
            followers: followers.clone(),
            dev: config.dev,
            body_max_bytes: config.http.body_max_bytes,
            client_timeout: Duration::from_millis(config.http.client_timeout_ms),
        });
        let thread_parts = ThreadStateParts {
            stores: parts.stores.clone(),
            catalog: Arc::clone(&catalog),
            committer,
            confirmer,
            order_id_secret: parts.stores.ledger.order_id_secret().await?,
            retire_after_ms: config.reconcile.retire_after_ms.cast_signed(),
        };
        let dev = config.dev;
        let server = HttpServer::new(move || {
            let thread_parts = thread_parts.clone();
            App::new()
                .app_data(app_state.clone())
                .data_factory(move || std::future::ready(thread_parts.clone().thread()))
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
pub fn payment_service(config: &Config) -> anyhow::Result<PaymentService> {
    payment_service_on(config, stores(config)?.ledger, Notifier::default())
}

/// Who takes payments and refunds.
fn payment_service_on(config: &Config, ledger: Ledger, notifier: Notifier) -> anyhow::Result<PaymentService> {
    let terms = PayTerms {
        currency: config.payments.currency.clone(),
        wait_ms: config.payments.wait_ms,
        ask_after: Duration::from_millis(config.payments.ask_after_ms),
        on_its_way: Duration::from_millis(config.payments.on_its_way_ms),
    };
    let channels = Channels::new(&config.channels)?;
    Ok(PaymentService::new(ledger, channels, notifier, terms))
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
struct ThreadStateParts {
    stores: Stores,
    catalog: Arc<Catalog>,
    committer: Committer,
    confirmer: Confirmer,
    order_id_secret: [u8; 32],
    retire_after_ms: i64,
}

impl ThreadStateParts {
    fn thread(self) -> Result<ThreadState, GateError> {
        Ok(ThreadState {
            reserve_batcher: ReserveBatcher::start(self.stores.gate.clone())?,
            gate: self.stores.gate,
            ledger: self.stores.ledger,
            catalog: self.catalog,
            committer: self.committer,
            confirmer: self.confirmer,
            order_id_secret: self.order_id_secret,
            retire_after_ms: self.retire_after_ms,
            sold_out: SoldOutView::default(),
            refusals: RefusalCache::default(),
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
    let wake = parts.listener.subscribe(Topic::Catalog);
    parts.tasks.spawn(repeat("catalog", Duration::from_secs(1), Some(wake), parts.stop.clone(), move || {
        let (catalog, health, committer) = (Arc::clone(&catalog), Arc::clone(&health), committer.clone());
        async move {
            let kept = catalog.load_changes().await;
            committer.set_healthy(kept.is_ok());
            health.ledger.store(kept.is_ok(), Ordering::Relaxed);
            kept
        }
    }));
}

/// Tells those who follow their orders what is new: when somebody says that there is something, and every second.
fn feed(parts: &Parts, followers: &OrderStreams) {
    let (followers, wake) = (followers.clone(), parts.listener.subscribe(Topic::Orders));
    parts.tasks.spawn(repeat("events", Duration::from_secs(1), Some(wake), parts.stop.clone(), move || {
        let followers = followers.clone();
        async move { followers.feed_new_steps().await }
    }));
}

/// Goes by the newest policies; those of purchases are the gate's to keep. And writes down what was asked of them.
fn follow_policies(parts: &Parts, policies: &Arc<PolicyCache>) {
    let (policies, gate) = (Arc::clone(policies), parts.stores.gate.clone());
    let otherwise = gate.limits();
    gate.set_limits(policies.purchase_limits(otherwise));
    let counting = (Arc::clone(&policies), gate.clone());
    let wake = parts.listener.subscribe(Topic::Policies);
    parts.tasks.spawn(repeat("policies", Duration::from_secs(1), Some(wake), parts.stop.clone(), move || {
        let (policies, gate) = (Arc::clone(&policies), gate.clone());
        async move {
            if policies.keep_up().await? {
                gate.set_limits(policies.purchase_limits(otherwise));
            }
            Ok::<_, FlowError>(Step::Idle)
        }
    }));
    let (policies, gate) = counting;
    parts.tasks.spawn(repeat("count", Duration::from_secs(1), None, parts.stop.clone(), move || {
        let (policies, gate) = (Arc::clone(&policies), gate.clone());
        async move { policy_counts::flush(&policies, &gate).await.map(|()| Step::Idle) }
    }));
}
