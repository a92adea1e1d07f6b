//! Sends the payments of one channel at its rate (docs/payments.md), each in its slot or not at all. Slots are claimed in batches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::{PayError, PaymentService};
use seckill_channel::deliver::{note_answer, outcome_of, send_in_slot};
use seckill_channel::{Channel, Charge};
use seckill_domain::breaker::{Admission, Breaker, BreakerSettings, CallOutcome, ProbeId};
use seckill_domain::delivery::{DeliveryOutcome, PAUSE_MIN, ReceiverFailure, Standing};
use seckill_domain::message::PaymentRequestedV1;
use seckill_domain::outflow::PROMPT;
use seckill_domain::payment::{About, PaymentId};
use seckill_domain::trace_context::TraceContext;
use seckill_postgres::LedgerError;
use seckill_postgres::money::payment_dispatch::{DuePayment, PaymentClaim};
use seckill_rabbitmq::MessageBatch;
use seckill_runtime::die_at;
use seckill_runtime::worker::batcher::Batcher;
use seckill_telemetry::spans::{Span, SpanKind};
use seckill_webhook::{CONNECT_MAX, HttpAnswer, SendError};

/// Requests in flight from one process to one channel; each may take seconds.
const UNDER_WAY_MAX: usize = 2_000;
/// How soon a channel is asked about a payment after an unclear answer.
const ASK_SOON: Duration = Duration::from_secs(1);
/// How soon a payment that missed its slot is sent again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long a batch of messages is held: well within the limits of a step and of the broker.
const SETTLE_MAX: Duration = Duration::from_secs(20);
/// Delay before a payment without a slot is sent again. After a channel's rest of known length, up to a minute.
const SEND_AGAIN_AFTER: Duration = Duration::from_secs(1);
const SEND_AGAIN_AFTER_MAX: Duration = Duration::from_secs(60);
/// At most this delay while the channel is away: it may return before its next probe, through another worker's.
const PAUSED_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Delay before the acceptance of a payment is recorded. Most payments are decided by then.
const WRITTEN_AFTER: Duration = Duration::from_millis(500);
/// The window of the batch of these records. No caller waits for them.
const WRITTEN_TOGETHER: Duration = Duration::from_millis(250);
/// The bound on moving later slots. After one second, no earlier request can come too close.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// Sends the payments of one channel, in cooperation with the senders of all other workers.
#[derive(Clone)]
pub struct PaymentSender {
    payment_service: PaymentService,
    channel: Arc<Channel>,
    tasks: TaskTracker,
    under_way: Arc<Semaphore>,
    /// Payments that the channel has accepted, with their claims.
    taken: Batcher<(PaymentId, i32), ()>,
    breaker: Arc<Mutex<Breaker>>,
    pace_set: Arc<OnceCell<()>>,
    started: Instant,
    stop: CancellationToken,
}

impl PaymentSender {
    /// Requests go on in `tasks` after the step that claimed them.
    pub fn new(
        payment_service: PaymentService,
        channel: Arc<Channel>,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        // An answer that takes the channel's whole time limit counts as a failure.
        let slow_ms = channel.patience.as_millis() as u64;
        let breaker = Breaker::new(BreakerSettings { slow_ms, open_ms: 2_000, ..BreakerSettings::default() });
        let service = payment_service.clone();
        let taken = Batcher::open(&tasks, WRITTEN_TOGETHER, move |sent| write_taken(service.clone(), sent));
        Self {
            payment_service,
            taken,
            channel,
            tasks,
            under_way: Arc::new(Semaphore::new(UNDER_WAY_MAX)),
            breaker: Arc::new(Mutex::new(breaker)),
            pace_set: Arc::default(),
            started: Instant::now(),
            stop,
        }
    }

    /// Settles a batch of messages: each payment has a slot or needs none.
    #[tracing::instrument(level = "debug", name = "pay", skip_all,
                          fields(channel = self.channel.name, messages = received.messages.len()))]
    pub async fn settle(&self, received: MessageBatch<PaymentRequestedV1>) -> Result<(), PayError> {
        let payments: Vec<PaymentId> = received.messages.iter().map(|message| message.payment_id).collect();
        let traces = received.traces.into_iter().map(|(index, trace)| (payments[index], trace)).collect();
        self.payment_service.open().await?;
        let (ledger, Channel { name, pace, .. }) = (&self.payment_service.ledger, &*self.channel);
        self.pace_set.get_or_try_init(async || ledger.payments.set_payment_pace(name, *pace).await).await?;
        self.send_all(payments, traces, Instant::now() + SETTLE_MAX).await
    }

    /// Sends payments until each has a slot. Slots may be missing at `deadline`, because the channel rests or other workers took them. Such
    /// payments are sent again later, also when the process stops.
    async fn send_all(
        &self,
        mut left: Vec<PaymentId>,
        traces: Vec<(PaymentId, TraceContext)>,
        deadline: Instant,
    ) -> Result<(), PayError> {
        let (ledger, channel) = (&self.payment_service.ledger, &self.channel);
        let receiver = channel.receiver();
        while !left.is_empty() {
            let standing = ledger.receivers.standing(&receiver).await?;
            if self.stop.is_cancelled() || Instant::now() > deadline {
                let wait = if let Standing::Pauses(pause) = standing { pause } else { SEND_AGAIN_AFTER };
                let wait = wait.clamp(SEND_AGAIN_AFTER, PAUSED_AGAIN_AFTER);
                return Ok(ledger.payments.postpone_payments(&left, wait).await?);
            }
            if let Standing::Pauses(pause) = standing {
                self.rest(pause).await;
                continue;
            }
            // A channel that keeps failing gets a pause, then one payment at a time as a probe.
            let admission = self.breaker.lock().admit(self.now_ms());
            let admission = match admission {
                Ok(admission) => admission,
                Err(wait_ms) => {
                    self.rest(Duration::from_millis(wait_ms.max(50))).await;
                    continue;
                }
            };
            // By then the request has been answered, or has timed out.
            let ask_after = CONNECT_MAX + channel.patience + ASK_SOON;
            let is_probe = admission == Admission::Probe || standing == Standing::ProbeDue;
            if standing == Standing::ProbeDue && !ledger.receivers.begin_probe(&receiver, ask_after).await? {
                self.breaker.lock().withdraw(admission);
                continue;
            }
            let most = if is_probe { 1 } else { u32::MAX };
            let claimed = ledger.payments.claim_payments(&channel.name, &left, most, ask_after).await;
            if !matches!(&claimed, Ok(PaymentClaim::Due { payments, .. }) if !payments.is_empty()) {
                self.breaker.lock().withdraw(admission);
                if standing == Standing::ProbeDue {
                    ledger.receivers.withdraw_probe(&receiver).await?;
                }
            }
            match claimed? {
                PaymentClaim::Wait(wait) if Instant::now() + wait > deadline => {
                    return Ok(ledger.payments.postpone_payments(&left, wait.min(SEND_AGAIN_AFTER_MAX)).await?);
                }
                // Random, so that the workers do not all wake at the same moment.
                PaymentClaim::Wait(wait) => self.rest(wait.mul_f64(rand::random_range(1.0..1.1))).await,
                PaymentClaim::Due { payments, looked_at } => {
                    left.drain(..looked_at);
                    for payment in payments {
                        let Ok(permit) = Arc::clone(&self.under_way).acquire_owned().await else { return Ok(()) };
                        let trace = traces.iter().find(|(id, _)| *id == payment.id);
                        let span = trace.map(|(_, trace)| Span::below(trace, SpanKind::Client, "POST payment"));
                        let log_span = span.as_ref().map_or_else(tracing::Span::none, Span::log_span);
                        let sender = self.clone();
                        let delivery = async move {
                            sender.deliver(&payment, span, admission, standing).await;
                            drop(permit);
                        };
                        self.tasks.spawn(delivery.instrument(log_span));
                    }
                }
            }
        }
        Ok(())
    }

    async fn rest(&self, wait: Duration) {
        self.stop.run_until_cancelled(sleep(wait.min(Duration::from_secs(1)))).await;
    }

    async fn deliver(&self, payment: &DuePayment, mut span: Option<Span>, admission: Admission, standing: Standing) {
        let (channel, ledger) = (&self.channel, &self.payment_service.ledger);
        let about = About::Payment { key: payment.id, order: payment.order };
        let charge = Charge { about, amount_cents: payment.amount_cents, currency: &payment.currency };
        let answer = match channel.prepare(&charge, span.as_ref().map(Span::context), payment.now_s).await {
            Ok(ready) => {
                let slot = payment.earliest..=payment.latest;
                // Runs beside the wait for the answer, so that a slow ledger does not count as a slow channel.
                let beside = async {
                    die_at!("pay.sent");
                    metrics::histogram!("seckill_payment_wait_seconds").record(payment.waited.as_secs_f64());
                    self.leave_room(payment).await;
                };
                let sent = send_in_slot(channel.sender(), ready, slot, channel.patience, beside).await;
                let Some(answer) = sent else {
                    self.breaker.lock().withdraw(admission);
                    count("forfeited");
                    if standing == Standing::ProbeDue {
                        self.write(payment, ledger.receivers.withdraw_probe(&channel.receiver())).await;
                    }
                    span.iter_mut().for_each(|span| span.fail("too late for its slot; sent again later"));
                    let taken_back = ledger.payments.take_back(payment.id, payment.claim, None, AGAIN);
                    return self.write(payment, taken_back).await;
                };
                answer
            }
            Err(error) => Err(error),
        };
        let probe = (admission == Admission::Probe).then_some(payment.id.0.as_u128());
        self.report_to_breaker(&answer, payment.earliest, probe);
        if let Some(mut span) = span {
            span.set("payment", payment.id.0.to_string());
            note_answer(&mut span, &answer);
        }
        self.settle_payment(payment, &answer).await;
        die_at!("pay.settled");
    }

    /// If this payment was late, moves the later slots too, so that no second gets too many (docs/delivery.md).
    async fn leave_room(&self, payment: &DuePayment) {
        let late = Instant::now().saturating_duration_since(payment.earliest);
        if late > PROMPT * 2 {
            let delay = ((late - PROMPT) / self.channel.pace.rate().max(1)).min(DELAY_MAX);
            let delay = if Instant::now() > payment.latest { late.min(DELAY_MAX) } else { delay };
            self.write(payment, self.payment_service.ledger.payments.delay_channel(&self.channel.name, delay)).await;
        }
    }

    async fn settle_payment(&self, payment: &DuePayment, answer: &Result<HttpAnswer, SendError>) {
        let (ledger, channel) = (&self.payment_service.ledger, &self.channel.name);
        let (id, claim) = (payment.id, payment.claim);
        let take_back = |after| ledger.payments.take_back(id, claim, None, after);
        let status = answer.as_ref().ok().map(|answer| answer.status);
        let outcome = outcome_of(answer);
        ledger.receivers.note(&self.channel.receiver(), payment.claimed_at, &outcome).await;
        match (outcome, status) {
            (DeliveryOutcome::Done, Some(202)) => {
                count("taken");
                let taken = self.taken.clone();
                self.tasks.spawn(async move {
                    sleep(WRITTEN_AFTER).await;
                    taken.write((id, claim)).await
                });
            }
            // The channel knew this key, so it knows the outcome too.
            (DeliveryOutcome::Done, _) => {
                count("taken");
                self.write(payment, ledger.payments.ask_soon(id, claim, Duration::ZERO)).await;
            }
            (DeliveryOutcome::Failed(failure), _) if !failure.may_have_taken_effect => {
                count(if status.is_some() { "limited" } else { "unreachable" });
                self.write(payment, take_back(failure.asks_pause.unwrap_or(PAUSE_MIN))).await;
            }
            // It is unknown whether the payment took effect: ask the channel, never guess. 409: the channel is working on this key.
            (DeliveryOutcome::Failed(ReceiverFailure { why, .. }), _) | (DeliveryOutcome::Refused(why), Some(409)) => {
                count("unknown");
                tracing::info!(payment = %id, %why, "no clear answer; the channel is asked later");
                self.write(payment, ledger.payments.ask_soon(id, claim, ASK_SOON)).await;
            }
            // Our credentials or the address are wrong: this says nothing against the payment.
            (DeliveryOutcome::Refused(why), Some(401 | 403 | 404 | 405) | None) => {
                count("unreachable");
                tracing::error!(channel, %why, "CHANNEL REFUSES OUR REQUESTS: check its url and secrets");
                self.write(payment, ledger.payments.rest_channel(channel, PAUSE_MIN)).await;
                self.write(payment, take_back(PAUSE_MIN * 5)).await;
            }
            (DeliveryOutcome::Refused(why), Some(_)) => {
                count("refused");
                tracing::warn!(payment = %id, %why, "payment refused");
                self.write(payment, ledger.payments.payment_refused(id, claim, &why)).await;
                self.payment_service.notifier.orders_changed();
            }
        }
    }

    fn report_to_breaker(&self, answer: &Result<HttpAnswer, SendError>, since: Instant, probe: Option<ProbeId>) {
        let failed = answer.as_ref().map_or(true, |answer| answer.status >= 500);
        let took_ms = since.elapsed().as_millis() as u64;
        if self.breaker.lock().report(self.now_ms(), CallOutcome { failed, took_ms }, probe) {
            tracing::warn!(channel = self.channel.name, "payment channel fails or is too slow; its payments wait");
        }
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Writes an outcome once. If the write fails, the channel is asked for the outcome later.
    async fn write(&self, payment: &DuePayment, writing: impl Future<Output = Result<(), LedgerError>>) {
        if let Err(error) = self.payment_service.ledger.in_time(writing).await {
            tracing::warn!(payment = %payment.id, %error, "outcome not written; the channel is asked later");
        }
    }
}

/// Records accepted requests once. If the write fails, the channel is asked for the outcomes later.
async fn write_taken(service: PaymentService, sent: Vec<(PaymentId, i32)>) -> Option<Vec<()>> {
    if let Err(error) = service.ledger.in_time(service.ledger.payments.payments_taken(&sent, service.ask_after())).await
    {
        tracing::warn!(payments = sent.len(), %error, "not written that payments were taken; the channel is asked later");
    }
    Some(vec![(); sent.len()])
}

fn count(outcome: &'static str) {
    metrics::counter!("seckill_payments_sent_total", "outcome" => outcome).increment(1);
}
