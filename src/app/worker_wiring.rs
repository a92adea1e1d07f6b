//! The steps of each background worker, and how often they run.

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use super::parts::{Parts, Rhythm};
use super::worker_names::Worker;
use seckill_buying::sale::{SaleError, Step};
use seckill_buying::sale_work::expire::OrderExpiry;
use seckill_buying::sale_work::group_work::GroupWork;
use seckill_buying::sale_work::reconcile::{DriftWatch, HoldWatch};
use seckill_buying::sale_work::relay::Relay;
use seckill_buying::sale_work::retention::{Retention, RetentionTimes};
use seckill_buying::sale_work::sales_in_turn::SalesInTurn;
use seckill_buying::sale_work::waves::WaveWatch;
use seckill_config as config;
use seckill_delivery::alarm_webhook::AlarmWebhook;
use seckill_delivery::order_webhooks::{OrderWebhooks, WebhookReceiver};
use seckill_delivery::outflow_drain::{DrainSettings, OutflowDrain};
use seckill_domain::locked_sales::LockedSales;
use seckill_flow::alarm_watch::AlarmWatch;
use seckill_flow::policy_counts;
use seckill_flow::threshold_controller::move_thresholds;
use seckill_money::PaymentService;
use seckill_money::payment_sender::PaymentSender;
use seckill_postgres::LedgerError;
use seckill_postgres::notices::Topic;
use seckill_postgres::outbox::RetryPolicy;
use seckill_rabbitmq::{Broker, Consumer, MessageBatch, Publisher, QueueError, Source};
use seckill_redis::GateError;
use seckill_redis::limiter::Limiter;
use seckill_webhook::Secret;

/// Messages about groups per step. In a backlog, each has about as many orders as one transaction. Fulfilment gives way between
/// steps.
const MESSAGES_A_STEP: usize = 4;

/// How long the work of a sale is postponed if another transaction has locked the sale.
const LOCKED_FOR: Duration = Duration::from_secs(10);

const METRICS_EVERY: Duration = Duration::from_secs(5);
/// The pause between two pages of clearing. Slow, because nothing waits for it.
const CLEAR_EVERY: Duration = Duration::from_secs(2);
/// Sales per sweep that are checked for retirement. With the default interval, 10,000 sales take five minutes, one day after their end.
const SALES_A_SWEEP: usize = 500;

pub(super) struct WorkerWiring<'a> {
    parts: &'a Parts,
    payment_service: &'a PaymentService,
    /// With the same answer time-out as for sales.
    limiter: Limiter,
    broker: Broker,
    relay: Relay,
    expiry: OrderExpiry,
    retry: RetryPolicy,
    locked: Arc<LockedSales>,
}

impl<'a> WorkerWiring<'a> {
    pub(super) fn new(parts: &'a Parts, payment_service: &'a PaymentService) -> Result<Self, GateError> {
        let patient = config::Flow { timeout_ms: parts.config.redis.response_timeout_ms, ..parts.config.flow.clone() };
        let limiter = Limiter::new(&parts.config.redis, &patient)?;
        let outbox = &parts.config.outbox;
        let retry = RetryPolicy {
            max_attempts: outbox.max_attempts,
            backoff_base_ms: outbox.backoff_base_ms,
            backoff_max_ms: outbox.backoff_max_ms,
        };
        let broker = Broker::new(&parts.config);
        let ledger = &parts.stores.ledger;
        let relay = Relay {
            ledger: ledger.clone(),
            publisher: Arc::new(Publisher::new(broker.clone())),
            batch_max: outbox.batch_max,
            retry,
        };
        let locked = Arc::new(LockedSales::new(LOCKED_FOR));
        // With its own publisher, a repeated expiry does not wait behind a batch of the relay.
        let work = GroupWork {
            ledger: ledger.clone(),
            notifier: parts.notifier.clone(),
            retry,
            locked: Arc::clone(&locked),
            batch_max: parts.config.orders.batch_max,
        };
        let expiry = OrderExpiry { work, publisher: Arc::new(Publisher::new(broker.clone())) };
        Ok(Self { parts, payment_service, limiter, broker, relay, expiry, retry, locked })
    }

    pub(super) fn spawn(&self, worker: Worker) {
        let parts = self.parts;
        let Parts { config, stores, stop, tasks, .. } = parts;
        let (outbox_poll, outbox_batch_max) = (Duration::from_millis(config.outbox.poll_ms), config.outbox.batch_max);
        let terms = config.reconcile.clone();
        match worker {
            Worker::Relay => {
                let rhythm = Rhythm::every(outbox_poll, "relay").or_when(Topic::Outbox).giving_way();
                parts.repeat(rhythm, self.relay.clone(), |relay| async move { relay.step().await });
            }
            Worker::Fulfil => {
                let rhythm = Rhythm::every(Duration::ZERO, "fulfil").giving_way();
                let consumer = Consumer::new(self.broker.clone(), Source::GroupsPlaced, MESSAGES_A_STEP);
                consume(parts, rhythm, consumer, self.expiry.work.clone(), |work, received| async move {
                    work.fulfil(received).await
                });
            }
            Worker::Expire => {
                let (rhythm, expiry) = (Rhythm::every(Duration::ZERO, "expire"), self.expiry.clone());
                let consumer = Consumer::new(self.broker.clone(), Source::GroupsExpire, MESSAGES_A_STEP);
                consume(parts, rhythm, consumer, expiry, |expiry, received| async move {
                    expiry.settle(received.messages).await
                });
            }
            Worker::Release => {
                let rhythm = Rhythm::every(outbox_poll, "release").or_when(Topic::Outbox).giving_way();
                let (retry, retire_after_ms) = (self.retry, terms.retire_after_ms);
                parts.repeat(rhythm, stores.clone(), move |stores| async move {
                    stores.release_units(outbox_batch_max, retry, retire_after_ms).await
                });
            }
            Worker::Waves => {
                let every = Duration::from_millis(terms.waves_interval_ms);
                let watch = WaveWatch::new(stores.clone(), Arc::clone(&self.locked), outbox_batch_max);
                parts.repeat(Rhythm::every(every, "waves"), Arc::new(Mutex::new(watch)), |watch| async move {
                    watch.lock().await.release_due().await
                });
            }
            Worker::Reconcile => {
                let every = Duration::from_millis(terms.interval_ms);
                let watch = Arc::new(Mutex::new(HoldWatch::new(stores.clone(), terms.unconfirmed_after_ms)));
                parts.repeat(Rhythm::every(every, "reconcile"), watch, |watch| async move {
                    watch.lock().await.finish_holds().await
                });
            }
            Worker::Drift => {
                let watch = Arc::new(Mutex::new(DriftWatch::new(stores.clone(), terms.retire_after_ms)));
                let every = Duration::from_millis(terms.drift_interval_ms);
                parts.repeat(Rhythm::every(every, "drift").in_proportion(), watch, |watch| async move {
                    watch.lock().await.check_sales().await
                });
            }
            Worker::Sweep => self.spawn_sweep(),
            Worker::Figures => {
                let every = Duration::from_secs(15);
                parts.repeat(Rhythm::every(every, "figures").giving_way(), stores.clone(), |stores| async move {
                    policy_counts::write_minutes(&stores.ledger.policies, &stores.gate).await.map(|()| Step::Idle)
                });
            }
            Worker::Adapt => {
                let every = Duration::from_millis(config.flow.adapt_interval_ms);
                let interval_s = config.flow.adapt_interval_ms.div_ceil(1000).cast_signed();
                parts.repeat(Rhythm::every(every, "adapt"), stores.clone(), move |stores| async move {
                    move_thresholds(&stores.ledger.policies, &stores.gate, interval_s).await.map(|()| Step::Idle)
                });
            }
            Worker::Alarms => self.spawn_alarms(),
            Worker::Outflow => self.spawn_outflow(),
            // Each payment channel has its own consumer, sender and status questions, so that a dead channel delays no other.
            Worker::Pay => {
                for channel in self.payment_service.channels.iter() {
                    let (service, channel) = (self.payment_service.clone(), Arc::clone(channel));
                    let source = Source::PaymentRequested { channel: channel.name.clone() };
                    let consumer = Consumer::new(self.broker.clone(), source, config.payments.batch_max);
                    let sender = PaymentSender::new(service, channel, tasks.clone(), stop.clone());
                    let rhythm = Rhythm::every(Duration::ZERO, "pay");
                    consume(parts, rhythm, consumer, sender, |sender, received| async move {
                        sender.settle(received).await
                    });
                }
            }
            Worker::Ask => {
                let (every, service) = (Duration::from_secs(1), self.payment_service);
                for channel in service.channels.iter() {
                    let state = (service.clone(), Arc::clone(channel));
                    parts.repeat(Rhythm::every(every, "ask"), state, |(service, channel)| async move {
                        service.poll(&channel).await
                    });
                }
                let rhythm = Rhythm::every(METRICS_EVERY, "money").in_proportion();
                parts.repeat(rhythm, service.clone(), |service| async move { service.watch().await });
            }
            Worker::Shop => self.spawn_order_webhooks(),
        }
    }

    /// Each of these steps asks other servers, so each has its own loop. The sweep continues while RabbitMQ or a Redis master is away.
    fn spawn_sweep(&self) {
        let config = &self.parts.config;
        let (terms, resend_after_ms, batch_max) =
            (&config.reconcile, config.outbox.resend_after_ms, config.orders.batch_max);
        let (sweep_grace_ms, retire_after_ms) = (terms.sweep_grace_ms, terms.retire_after_ms);
        let every = Duration::from_millis(terms.sweep_interval_ms);
        let slow = |name| Rhythm::every(every, name).giving_way().in_proportion();
        self.parts.repeat(slow("sweep"), self.expiry.clone(), move |expiry| async move {
            expiry.sweep(sweep_grace_ms, batch_max).await
        });
        self.parts.repeat(Rhythm::every(every, "resend").giving_way(), self.relay.clone(), move |relay| async move {
            let resent = relay.resend(resend_after_ms).await?;
            if let Err(error) = relay.watch_dead_letters().await {
                tracing::warn!(%error, "dead letters not counted: no alarm is raised for them");
            }
            Ok::<_, SaleError>(resent)
        });
        let state = (self.parts.stores.clone(), Arc::new(Mutex::new(SalesInTurn::new(SALES_A_SWEEP))));
        self.parts.repeat(slow("retire"), state, move |(stores, in_turn)| async move {
            stores.ledger.sales.clear_changes().await?;
            stores.ledger.outbox.clear_marks().await?;
            stores.retire_sales(&mut *in_turn.lock().await, retire_after_ms).await.map(|()| Step::Idle)
        });
        let kept = &config.retention;
        let times = RetentionTimes {
            messages_days: kept.messages_days.into(),
            steps_days: kept.steps_days.into(),
            records_days: kept.records_days.into(),
        };
        let retention = Arc::new(Mutex::new(Retention::new(self.parts.stores.clone(), times)));
        let rhythm = Rhythm::every(CLEAR_EVERY, "retention").giving_way().in_proportion();
        self.parts.repeat(rhythm, retention, |retention| async move { retention.lock().await.step().await });
    }

    fn spawn_alarms(&self) {
        let (settings, stores) = (&self.parts.config.alarms, &self.parts.stores);
        let every = Duration::from_millis(settings.interval_ms);
        let watch = AlarmWatch {
            ledger: stores.ledger.clone(),
            gate: stores.gate.clone(),
            limiter: self.limiter.clone(),
            limiter_has_own_redis: self.parts.config.flow.has_own_redis(),
            settings: Arc::new(settings.clone()),
            slow_ping: Duration::from_millis(self.parts.config.flow.timeout_ms) / 2,
        };
        // Steps that ask Redis are separate from steps that read tables.
        let (of_keys, of_limiter, of_memory) = (watch.clone(), watch.clone(), watch.clone());
        self.parts.repeat(Rhythm::every(every, "memory alarms"), of_memory, |watch| async move {
            watch.check_memory().await.map(|()| Step::Idle)
        });
        self.parts.repeat(Rhythm::every(every, "keys alarms"), of_keys, |watch| async move {
            watch.check_keys().await.map(|()| Step::Idle)
        });
        self.parts.repeat(Rhythm::every(every, "limiter alarms"), of_limiter, |watch| async move {
            watch.check_limiter().await.map(|()| Step::Idle)
        });
        self.parts.repeat(Rhythm::every(every, "alarms").in_proportion(), watch, |watch| async move {
            watch.check_tables().await.map(|()| Step::Idle)
        });
        if let Ok(secret) = Secret::parse(&settings.webhook_secret) {
            let (ledger, url) = (stores.ledger.clone(), settings.webhook_url.clone());
            let webhook = AlarmWebhook { ledger, url, secret, sender: Arc::default() };
            let rhythm = Rhythm::every(every, "alarm webhook");
            self.parts.repeat(rhythm, webhook, |webhook| async move { webhook.step().await });
        }
    }

    fn spawn_outflow(&self) {
        let settings = &self.parts.config.outflow;
        let terms = DrainSettings {
            request_timeout: Duration::from_millis(settings.request_timeout_ms),
            allows_http: self.parts.config.allows_http(),
            retry: RetryPolicy {
                max_attempts: settings.max_attempts,
                backoff_base_ms: settings.backoff_base_ms,
                backoff_max_ms: settings.backoff_max_ms,
            },
        };
        let (ledger, channels) = (self.parts.stores.ledger.clone(), self.payment_service.channels.clone());
        let drain = OutflowDrain::new(ledger, terms, channels, self.parts.tasks.clone());
        let every = Duration::from_secs(1);
        self.parts.repeat(Rhythm::every(every, "outflow").or_when(Topic::Outflow), drain.clone(), |drain| async move {
            drain.step().await
        });
        self.parts.repeat(Rhythm::every(every, "outflow depths").in_proportion(), drain.clone(), |drain| async move {
            drain.count_waiting().await
        });
        self.parts.repeat(Rhythm::every(METRICS_EVERY, "outflow watch").in_proportion(), drain, |drain| async move {
            drain.watch().await
        });
    }

    fn spawn_order_webhooks(&self) {
        let Parts { config, stores, listener, tasks, .. } = self.parts;
        let secrets = config.shop.webhook_secrets.iter().filter_map(|secret| Secret::parse(secret).ok()).collect();
        let url = config.shop.webhook_url.clone();
        let receiver = (!url.is_empty()).then_some(WebhookReceiver { url, secrets });
        let webhooks = OrderWebhooks::new(stores.ledger.clone(), listener.clone(), receiver, self.retry, tasks.clone());
        let every = Duration::from_millis(config.outbox.poll_ms);
        let rhythm = Rhythm::every(every, "shop").or_when(Topic::Orders).giving_way();
        self.parts.repeat(rhythm, webhooks, |webhooks| async move { webhooks.step().await });
    }
}

/// Repeats a consumer's step. `settle` gets the received messages with a clone of `of`. A mark from the queue is recorded in the ledger.
fn consume<M, T, F, E>(
    parts: &Parts,
    rhythm: Rhythm,
    consumer: Consumer<M>,
    of: T,
    settle: impl Fn(T, MessageBatch<M>) -> F + Copy + Send + Sync + 'static,
) where
    M: DeserializeOwned + Clone + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: From<QueueError> + From<LedgerError> + std::fmt::Display + Send + 'static,
{
    let (stop, ledger, queue) = (parts.stop.clone(), parts.stores.ledger.clone(), consumer.source().key());
    let state = (Arc::new(Mutex::new(consumer)), of);
    parts.repeat(rhythm, state, move |(consumer, of)| {
        let (stop, ledger, queue) = (stop.clone(), ledger.clone(), queue.clone());
        async move {
            let settle = |received: MessageBatch<M>| {
                let (of, ledger, queue) = (of.clone(), ledger.clone(), queue.clone());
                async move {
                    let mark_ms = received.mark_ms;
                    if !received.messages.is_empty() {
                        settle(of, received).await?;
                    }
                    if let Some(mark_ms) = mark_ms {
                        ledger.outbox.mark_passed(&queue, mark_ms).await?;
                    }
                    Ok::<_, E>(())
                }
            };
            consumer.lock().await.step(&stop, settle).await
        }
    });
}
