//! The HTTP service: its shared state, the state of its worker threads, and its server.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix_web::dev::{Server, ServerHandle};
use actix_web::{App, web};
use anyhow::Context;

use super::parts::Parts;
use super::workers::spawn_workers;
use super::{http_server, notifying_payment_service};
use crate::api::{self, Shortcut};
use seckill_backoffice::admin::Office;
use seckill_backoffice::api::{Backoffice, CookieNames};
use seckill_backoffice::console;
use seckill_buying::live::{LiveSales, Sources};
use seckill_buying::sale::Stores;
use seckill_buying::sale::cancellations::Cancellations;
use seckill_buying::sale::catalog::Catalog;
use seckill_buying::sale::challenges::Challenges;
use seckill_buying::sale::confirmer::Confirmer;
use seckill_buying::sale::load_shedder::LoadShedder;
use seckill_buying::sale::order_reader::OrderReader;
use seckill_buying::sale::order_streams::OrderStreams;
use seckill_buying::sale::refusal_cache::RefusalCache;
use seckill_buying::sale::thread_state::ThreadState;
use seckill_buying::sale::winners::Winners;
use seckill_config::Config;
use seckill_flow::permits::Permits;
use seckill_flow::policy_cache::PolicyCache;
use seckill_http::{self as http, AppState, Bulkheads, Health, MetricsPage, TrustedProxies};
use seckill_money::api::Money;
use seckill_money::batchers::PaymentBatchers;
use seckill_pages::{self as pages, Pages};
use seckill_postgres::orders::committer::Committer;
use seckill_rabbitmq::Broker;
use seckill_redis::limiter::Limiter;
use seckill_redis::reserve::batcher::ReserveBatcher;
use seckill_telemetry as telemetry;
use seckill_tokens::Tokens;

pub struct Service {
    parts: Parts,
    server: Server,
    address: SocketAddr,
    catalog: Arc<Catalog>,
    stopper: Stopper,
}

#[derive(Clone)]
pub struct Stopper {
    handle: ServerHandle,
    health: Arc<Health>,
    order_streams: OrderStreams,
    live: LiveSales,
}

impl Stopper {
    pub async fn stop(self) {
        self.health.stopping.store(true, Ordering::Relaxed);
        // Streams would never finish.
        self.order_streams.close();
        self.live.close();
        self.handle.stop(true).await;
    }
}

impl Service {
    /// Loads the catalogue, binds the address, and starts the background work of a serving instance. `with_workers`: also starts the
    /// background workers.
    pub async fn bind(config: Config, with_workers: bool) -> anyhow::Result<Self> {
        config.check_for_service()?;
        let metrics = telemetry::metrics();
        let tokens = Tokens::new(&config.auth, config.dev)?;
        let listener = http_server::listen(config.http.bind)
            .with_context(|| format!("cannot listen on {} (http.bind)", config.http.bind))?;
        let address = listener.local_addr()?;
        let parts = Parts::assemble(config, with_workers).await?;
        let (config, ledger) = (&parts.config, &parts.stores.ledger);
        // Before the catalogue: from then on, changes of sales wait for this instance.
        if let Some(issuer) = tokens.issuer() {
            issuer.read().await;
        }
        let catalog = Catalog::load(&parts.stores, config.reconcile.retire_after_ms)
            .await
            .context("cannot load the catalogue from PostgreSQL")?;
        let catalog = Arc::new(catalog);
        let health = Arc::new(Health::default());
        health.ledger.store(true, Ordering::Relaxed);
        health.note_migrations(catalog.has_migrations().await?);

        let policies =
            Arc::new(PolicyCache::load(ledger.policies.clone(), catalog.instance(), config.flow.timeout_ms).await?);
        let limiter = Limiter::new(&config.redis, &config.flow)?.with_clock(Arc::clone(&catalog.clock));
        let secret = ledger.orders.order_id_secret().await?;
        let office = Office::new(
            parts.stores.clone(),
            limiter.clone(),
            &secret,
            &parts.pressure,
            &config.admin,
            config.payments.currency,
        )?;
        let payment_service = notifying_payment_service(config, ledger.clone(), parts.notifier.clone())?;
        let order_streams = OrderStreams::new(ledger.orders.clone(), config.http.streams_max);
        let live_sources = Sources {
            stores: parts.stores.clone(),
            clock: Arc::clone(&catalog.clock),
            metrics: metrics.clone(),
            pressure: Arc::clone(&parts.pressure),
            broker: Broker::new(config),
        };
        let live = LiveSales::new(live_sources, parts.tasks.clone());
        let connections = http_server::connections(&config.http);
        let threads = Threads::start(&parts, &catalog, connections).await?;

        if let Some(issuer) = tokens.issuer() {
            parts.follow_issuer(issuer);
        }
        parts.fold_metrics(metrics.clone());
        parts.follow_catalog(&catalog, &health, &threads.committer);
        parts.follow_policies(&policies);
        parts.watch_memory(&limiter, &health);
        parts.prepare_challenges(&threads.challenges, &catalog);
        parts.feed_order_streams(&order_streams);
        parts.report_pressure();
        parts.supervise_refills(Some(Arc::clone(&health)), Duration::ZERO);
        if with_workers {
            spawn_workers(&parts, None, &payment_service)?;
        }

        let app_state = AppState {
            tokens,
            bulkheads: Bulkheads::new(
                &parts.pressure,
                config.database.max_connections,
                config.http.line_max,
                config.http.buyer_reads,
            ),
            trusted_proxies: TrustedProxies {
                networks: config.http.trusted_proxies.clone(),
                header: config.http.forwarded_header,
            },
            health: Arc::clone(&health),
            metrics: MetricsPage::new(metrics),
            api: api::api_document(config.dev, pages::document(), &payment_service.channels.names())?,
            clock: Arc::clone(&catalog.clock),
            dev: config.dev,
            body_max_bytes: config.http.body_max_bytes,
            client_timeout: Duration::from_millis(config.http.client_timeout_ms),
        };
        let app_state = web::Data::new(app_state);
        let permits = web::Data::new(Permits::new(policies, limiter, config.flow.queue_max));
        let batchers = PaymentBatchers::open(payment_service.clone(), &parts.tasks);
        let money = web::Data::new(Money { service: payment_service, batchers });
        let streams = web::Data::new(order_streams.clone());
        let cookies = CookieNames::new(config.dev);
        let backoffice = web::Data::new(Backoffice { office, cookies, live: live.clone() });
        let console_files = web::Data::new(console::Files::embedded()?);
        let pages = web::Data::new(Pages::new(super::page_settings(config, None)?)?);
        let thread_state = threads.state;
        let app = move || {
            let thread = web::Data::new(thread_state()?);
            let shortcut = Shortcut::new(thread.clone(), app_state.clone());
            let app = App::new()
                .app_data(app_state.clone())
                .app_data(permits.clone())
                .app_data(money.clone())
                .app_data(streams.clone())
                .app_data(backoffice.clone())
                .app_data(pages.clone())
                .app_data(console_files.clone())
                .app_data(thread)
                .configure(api::routes(app_state.dev, pages::missing))
                .configure(console::routes(http::unsupported_methods))
                .configure(pages::routes(http::unsupported_methods));
            Ok((app, Some(shortcut)))
        };
        // Purchases may skip the CORS code only if no origin is listed.
        let origins = config.http.cors_origins.clone();
        let hosts = config.dev.then(|| origins.iter().chain(&config.pages.origin).cloned().collect());
        let server = if origins.is_empty() {
            http_server::start(&config.http, connections, listener, hosts, app)
        } else {
            http_server::start(&config.http, connections, listener, hosts, move || {
                let (app, _) = app()?;
                Ok((app.wrap(http::cors(&origins)), None))
            })
        }?;
        let stopper = Stopper { handle: server.handle(), health, order_streams, live };
        Ok(Self { parts, server, address, catalog, stopper })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves until stopped. Then commits the purchases in flight, and stops the background tasks.
    pub async fn run(self) -> anyhow::Result<()> {
        tracing::info!(address = %self.address, "serving");
        if self.parts.config.dev && !self.address.ip().is_loopback() {
            tracing::warn!(
                "development mode: whoever reaches this address may act as any buyer, and sign orders as paid"
            );
        }
        self.server.await?;
        if let Err(error) = self.catalog.leave().await {
            tracing::debug!(%error, "could not sign this instance off");
        }
        self.parts.shut().await;
        tracing::info!("stopped");
        Ok(())
    }
}

/// What all worker threads share, and the maker of each thread's own state.
struct Threads {
    committer: Committer,
    challenges: Arc<Challenges>,
    state: Arc<dyn Fn() -> anyhow::Result<ThreadState> + Send + Sync>,
}

impl Threads {
    /// Starts the tasks that commit and confirm all threads' purchases, and the threads that draw challenges. `connections` is the
    /// limit per thread.
    async fn start(parts: &Parts, catalog: &Arc<Catalog>, connections: usize) -> anyhow::Result<Self> {
        let (config, tasks, purchase) = (&parts.config, &parts.tasks, &parts.config.purchase);
        let (stores, catalog, pressure) = (parts.stores.clone(), Arc::clone(catalog), Arc::clone(&parts.pressure));
        let order_id_secret = stores.ledger.orders.order_id_secret().await?;
        let challenges = Arc::new(Challenges::start(config.captcha.clone(), &order_id_secret, &pressure)?);
        let committer = Committer::start(
            &stores.ledger,
            purchase.committers,
            purchase.commit_batch_max,
            purchase.queue_max,
            &parts.notifier,
            tasks,
        );
        let (confirmer, confirming) = Confirmer::new(stores.gate.clone());
        let cancellations = Cancellations::start(&stores.ledger.orders, &committer, tasks);
        tasks.spawn(confirming);
        let (orders, line_max) = (stores.ledger.orders.clone(), config.http.line_max);
        let order_reader = OrderReader::start(orders, Arc::clone(&pressure), line_max, tasks);
        let ticket_reader = OrderReader::start_for_tickets(stores.ledger.with_reserved().orders, tasks);
        let wait_target = Duration::from_millis(purchase.wait_target_ms);
        let retire_after_ms = config.reconcile.retire_after_ms.cast_signed();
        let shared = (committer.clone(), Arc::clone(&challenges));
        let state = move || {
            let (Stores { ledger, gate }, (committer, challenges)) = (stores.clone(), shared.clone());
            let winners = Winners { committer: committer.clone(), confirmer: confirmer.clone(), gate: gate.clone() };
            let (reserve_batcher, calls) = ReserveBatcher::new(gate.clone())?;
            tokio::task::spawn_local(winners.finish_all(calls));
            let (batcher, pressure) = (reserve_batcher.clone(), Arc::clone(&pressure));
            Ok(ThreadState {
                reserve_batcher,
                load_shedder: LoadShedder::start(batcher, committer.clone(), pressure, wait_target, connections / 2)?,
                gate,
                ledger,
                catalog: Arc::clone(&catalog),
                challenges,
                committer,
                order_reader: order_reader.clone(),
                ticket_reader: ticket_reader.clone(),
                cancellations: cancellations.clone(),
                order_id_secret,
                retire_after_ms,
                shown_units: RefCell::default(),
                refusals: RefusalCache::default(),
            })
        };
        Ok(Self { committer, challenges, state: Arc::new(state) })
    }
}
