//! The background workers, wired: each a bounded step of the story in the one loop that repeats it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use actix_web::{App, HttpServer};
use anyhow::Context;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::{Parts, payment_service_on, upkeep};
use crate::config::Config;
use crate::flow::alarm_watch::{AlarmTerms, AlarmWatch};
use crate::flow::alarm_webhook::AlarmWebhook;
use crate::flow::order_webhooks::{OrderWebhooks, WebhookReceiver};
use crate::flow::outflow_drain::{OutflowDrain, OutflowTerms};
use crate::flow::policy_counts;
use crate::flow::threshold_controller::ThresholdController;
use crate::http;
use crate::ledger::notices::Topic;
use crate::ledger::outbox::RetryTerms;
use crate::pay::PaymentService;
use crate::pay::payment_sender::PaymentSender;
use crate::queue::{Broker, Consumer, Publisher, QueueError, Source};
use crate::sale::expire::OrderExpiry;
use crate::sale::fulfil::Fulfilment;
use crate::sale::reconcile::DriftWatch;
use crate::sale::relay::Relay;
use crate::sale::{SaleError, Step};
use crate::telemetry;
use crate::worker::repeat;
use seckill_webhook::Secret;

/// The workers there are, by the names that `work --only` takes.
pub const WORKERS: [&str; 15] = [
    "relay",
    "fulfil",
    "expire",
    "release",
    "waves",
    "reconcile",
    "drift",
    "sweep",
    "figures",
    "adapt",
    "alarms",
    "outflow",
    "pay",
    "ask",
    "shop",
];

/// Runs the background workers, all or those named, until `stop` is cancelled.
pub async fn work(config: Config, only: Option<BTreeSet<String>>, stop: CancellationToken) -> anyhow::Result<()> {
    let metrics = telemetry::metrics();
    let parts = Parts::assemble(config)?;
    let payment_service = payment_service_on(&parts.config, parts.stores.ledger.clone(), parts.notifier.clone())?;
    if let Some(bind) = parts.config.work.metrics_bind {
        let metrics = metrics.clone();
        let show = move || App::new().configure(http::figures(metrics.clone()));
        let server = HttpServer::new(show).workers(1).disable_signals().bind(bind);
        let server = server.with_context(|| format!("cannot listen on {bind} (work.metrics_bind)"))?.run();
        let (handle, stop) = (server.handle(), parts.stop.clone());
        parts.tasks.spawn(async move {
            stop.cancelled().await;
            handle.stop(false).await;
        });
        parts.tasks.spawn(async move { _ = server.await });
    }
    parts.tasks.spawn(upkeep(metrics, parts.stop.clone()));
    parts.supervise_refills(None);
    spawn_workers(&parts, only.as_ref(), &payment_service);
    tracing::info!("working");
    stop.cancelled().await;
    parts.shut().await;
    tracing::info!("stopped");
    Ok(())
}

pub(super) fn spawn_workers(parts: &Parts, only: Option<&BTreeSet<String>>, payment_service: &PaymentService) {
    let wanted = |name: &str| only.is_none_or(|only| only.contains(name));
    let Parts { config, stores, notifier, listener, stop, tasks } = parts;
    let ledger = &stores.ledger;
    let broker = Broker::new(config);
    let outbox_poll = Duration::from_millis(config.outbox.poll_ms);
    let retry = RetryTerms {
        max_attempts: config.outbox.max_attempts,
        backoff_base_ms: config.outbox.backoff_base_ms,
        backoff_max_ms: config.outbox.backoff_max_ms,
    };
    let relay = Relay {
        ledger: ledger.clone(),
        publisher: Arc::new(Publisher::new(broker.clone())),
        batch_max: config.outbox.batch_max,
        retry,
    };
    // A publisher of its own: an expiry that goes round again does not wait behind a batch of the relay's.
    let expiries = OrderExpiry {
        ledger: ledger.clone(),
        publisher: Arc::new(Publisher::new(broker.clone())),
        notifier: notifier.clone(),
        retry,
    };

    if wanted("relay") {
        let relay = relay.clone();
        let wake = listener.subscribe(Topic::Outbox);
        tasks.spawn(repeat("relay", outbox_poll, Some(wake), stop.clone(), move || {
            let relay = relay.clone();
            async move { relay.step().await }
        }));
    }
    if wanted("fulfil") {
        let fulfilment = Fulfilment { ledger: ledger.clone(), notifier: notifier.clone(), retry };
        let consumer = Consumer::new(broker.clone(), Source::OrderPlaced, config.orders.batch_max);
        spawn_consumer(parts, "fulfil", consumer, move |messages| {
            let fulfilment = fulfilment.clone();
            async move { fulfilment.settle(messages).await }
        });
    }
    if wanted("expire") {
        let expiries = expiries.clone();
        let consumer = Consumer::new(broker.clone(), Source::OrderExpire, config.orders.batch_max);
        spawn_consumer(parts, "expire", consumer, move |messages| {
            let expiries = expiries.clone();
            async move { expiries.settle(messages).await.map(|()| Vec::new()) }
        });
    }
    if wanted("release") {
        let (stores, batch_max) = (stores.clone(), config.outbox.batch_max);
        let wake = listener.subscribe(Topic::Outbox);
        tasks.spawn(repeat("release", outbox_poll, Some(wake), stop.clone(), move || {
            let stores = stores.clone();
            async move { stores.release_units(batch_max).await }
        }));
    }
    if wanted("waves") {
        let (stores, batch_max) = (stores.clone(), config.outbox.batch_max);
        let every = Duration::from_millis(config.reconcile.waves_interval_ms);
        tasks.spawn(repeat("waves", every, None, stop.clone(), move || {
            let stores = stores.clone();
            async move { stores.release_waves(batch_max).await }
        }));
    }
    if wanted("reconcile") {
        let (stores, terms) = (stores.clone(), config.reconcile.clone());
        let every = Duration::from_millis(terms.interval_ms);
        tasks.spawn(repeat("reconcile", every, None, stop.clone(), move || {
            let stores = stores.clone();
            let (unconfirmed_after_ms, retire_after_ms) = (terms.unconfirmed_after_ms, terms.retire_after_ms);
            async move { stores.finish_holds(unconfirmed_after_ms, retire_after_ms).await }
        }));
    }
    if wanted("drift") {
        let watch = Arc::new(Mutex::new(DriftWatch::new(stores.clone(), config.reconcile.retire_after_ms)));
        let every = Duration::from_millis(config.reconcile.drift_interval_ms);
        tasks.spawn(repeat("drift", every, None, stop.clone(), move || {
            let watch = Arc::clone(&watch);
            async move { watch.lock().await.look().await }
        }));
    }
    if wanted("figures") {
        let stores = stores.clone();
        tasks.spawn(repeat("figures", Duration::from_secs(15), None, stop.clone(), move || {
            let stores = stores.clone();
            async move { policy_counts::write_minutes(&stores.ledger, &stores.gate).await.map(|()| Step::Idle) }
        }));
    }
    if wanted("adapt") {
        let interval_ms = config.flow.adapt_interval_ms;
        let controller =
            ThresholdController::new(ledger.clone(), stores.gate.clone(), interval_ms.div_ceil(1000).cast_signed());
        let controller = Arc::new(Mutex::new(controller));
        tasks.spawn(repeat("adapt", Duration::from_millis(interval_ms), None, stop.clone(), move || {
            let controller = Arc::clone(&controller);
            async move { controller.lock().await.look().await.map(|()| Step::Idle) }
        }));
    }
    if wanted("alarms") {
        let terms = AlarmTerms {
            outbox_age_s: config.alarms.outbox_age_s.cast_signed(),
            refused_percent: config.alarms.refused_percent,
        };
        let watch = AlarmWatch { ledger: ledger.clone(), gate: stores.gate.clone(), terms };
        let every = Duration::from_millis(config.alarms.interval_ms);
        tasks.spawn(repeat("alarms", every, None, stop.clone(), move || {
            let watch = watch.clone();
            async move { watch.look().await.map(|()| Step::Idle) }
        }));
    }
    if wanted("alarms")
        && let Ok(secret) = Secret::parse(&config.alarms.webhook_secret)
    {
        let (ledger, url) = (ledger.clone(), config.alarms.webhook_url.clone());
        let webhook = AlarmWebhook { ledger, url, secret, sender: Arc::default() };
        let every = Duration::from_millis(config.alarms.interval_ms);
        tasks.spawn(repeat("tell", every, None, stop.clone(), move || {
            let webhook = webhook.clone();
            async move { webhook.step().await }
        }));
    }
    if wanted("sweep") {
        let (stores, terms, resend_after_ms) =
            (stores.clone(), config.reconcile.clone(), config.outbox.resend_after_ms);
        let (every, batch_max) = (Duration::from_millis(terms.sweep_interval_ms), config.orders.batch_max);
        tasks.spawn(repeat("sweep", every, None, stop.clone(), move || {
            let (relay, expiries, stores, terms) = (relay.clone(), expiries.clone(), stores.clone(), terms.clone());
            async move {
                let resent = relay.resend(resend_after_ms).await?;
                if let Err(error) = relay.watch_dead_letters().await {
                    tracing::debug!(%error, "dead letters not looked at");
                }
                stores.retire_sales(terms.retire_after_ms).await?;
                stores.ledger.clear_changes().await?;
                let swept = expiries.sweep(terms.sweep_grace_ms, batch_max).await?;
                Ok::<_, SaleError>(if resent == Step::More { resent } else { swept })
            }
        }));
    }
    if wanted("outflow") {
        spawn_outflow(parts, payment_service);
    }
    // Each payment channel has a consumer, a sender and questions of its own: a dead one holds up no other.
    for channel in payment_service.channels.iter() {
        if wanted("pay") {
            let sender = PaymentSender::new(payment_service.clone(), Arc::clone(channel), tasks.clone(), stop.clone());
            let source = Source::PaymentRequested { channel: channel.name.clone() };
            let consumer = Consumer::new(broker.clone(), source, config.payments.batch_max);
            spawn_consumer(parts, "pay", consumer, move |messages| {
                let sender = sender.clone();
                async move { sender.settle(messages).await.map(|()| Vec::new()) }
            });
        }
        if wanted("ask") {
            let (payments, channel) = (payment_service.clone(), Arc::clone(channel));
            tasks.spawn(repeat("ask", Duration::from_secs(1), None, stop.clone(), move || {
                let (payments, channel) = (payments.clone(), Arc::clone(&channel));
                async move { payments.poll(&channel).await }
            }));
        }
    }
    if wanted("ask") {
        let watch = payment_service.clone();
        tasks.spawn(repeat("money", Duration::from_secs(1), None, stop.clone(), move || {
            let watch = watch.clone();
            async move { watch.watch().await }
        }));
    }
    if wanted("shop") {
        spawn_shop(parts, retry);
    }
}

fn spawn_shop(parts: &Parts, retry: RetryTerms) {
    let (ledger, stores) = (parts.stores.ledger.clone(), &parts.config.shop);
    let secrets = stores.webhook_secrets.iter().filter_map(|secret| Secret::parse(secret).ok()).collect();
    let line = (!stores.webhook_url.is_empty()).then(|| WebhookReceiver { url: stores.webhook_url.clone(), secrets });
    let webhooks = OrderWebhooks::new(ledger, parts.listener.clone(), line, retry, parts.tasks.clone());
    let (every, wake) = (Duration::from_millis(parts.config.outbox.poll_ms), parts.listener.subscribe(Topic::Orders));
    parts.tasks.spawn(repeat("shop", every, Some(wake), parts.stop.clone(), move || {
        let webhooks = webhooks.clone();
        async move { webhooks.step().await }
    }));
}

fn spawn_outflow(parts: &Parts, payment_service: &PaymentService) {
    let terms = &parts.config.outflow;
    let terms = OutflowTerms {
        request_timeout: Duration::from_millis(terms.request_timeout_ms),
        retry: RetryTerms {
            max_attempts: terms.max_attempts,
            backoff_base_ms: terms.backoff_base_ms,
            backoff_max_ms: terms.backoff_max_ms,
        },
    };
    let (ledger, channels) = (parts.stores.ledger.clone(), payment_service.channels.clone());
    let outflow_drain = OutflowDrain::new(ledger, terms, channels, parts.tasks.clone());
    let (every, wake) = (Duration::from_secs(1), parts.listener.subscribe(Topic::Outflow));
    let watch = outflow_drain.clone();
    parts.tasks.spawn(repeat("outflow", every, Some(wake), parts.stop.clone(), move || {
        let outflow_drain = outflow_drain.clone();
        async move { outflow_drain.step().await }
    }));
    parts.tasks.spawn(repeat("outflow watch", every, None, parts.stop.clone(), move || {
        let watch = watch.clone();
        async move { watch.watch().await }
    }));
}

/// Repeats a consumer's step. `settle` returns the indexes of the messages that go to the dead-letter queue.
fn spawn_consumer<M, F, E>(
    parts: &Parts,
    name: &'static str,
    consumer: Consumer<M>,
    settle: impl Fn(Vec<M>) -> F + Clone + Send + Sync + 'static,
) where
    M: DeserializeOwned + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Vec<usize>, E>> + Send + 'static,
    E: From<QueueError> + std::fmt::Display + Send + 'static,
{
    let (consumer, stop) = (Arc::new(Mutex::new(consumer)), parts.stop.clone());
    parts.tasks.spawn(repeat(name, Duration::ZERO, None, parts.stop.clone(), move || {
        let (consumer, settle, stop) = (Arc::clone(&consumer), settle.clone(), stop.clone());
        async move { consumer.lock().await.step(&stop, settle).await }
    }));
}
