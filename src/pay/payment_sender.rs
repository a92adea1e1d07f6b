//! Payments leave for their channel at its pace, however fast they come (docs/payments.md): slots are claimed for a few
//! at a time, and each is sent in its slot or not at all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::poll;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{PayError, PaymentService};
use crate::channel::{Channel, Charge};
use crate::die_at;
use crate::domain::breaker::{Breaker, BreakerState, BreakerTerms, CallOutcome};
use crate::domain::message::PaymentRequestedV1;
use crate::domain::outflow::{DeliveryOutcome, PROMPT};
use crate::domain::payment::{About, PaymentId};
use crate::ledger::LedgerError;
use crate::ledger::money::payment_dispatch::{Claimed, DuePayment, SendState};
use seckill_webhook::{HttpAnswer, SendError};

/// Requests under way in one process, to a channel that may take seconds for each.
const UNDER_WAY_MAX: usize = 2_000;
/// How long a channel is left alone that cannot be connected to.
const UNREACHABLE_REST: Duration = Duration::from_secs(1);
/// How soon a channel is asked about a payment whose request had no proper answer.
const ASK_SOON: Duration = Duration::from_secs(1);
/// How soon one is brought again that was not sent in its slot.
const AGAIN: Duration = Duration::from_millis(100);
/// How long a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// How long a batch of messages is kept in hand, well within what a step may take and the broker waits for.
const SETTLE_MAX: Duration = Duration::from_secs(20);
/// After that, or at the end of the process, the others come again so soon, or when the channel has rested, a minute at most.
const BROUGHT_AGAIN: Duration = Duration::from_secs(1);
const BROUGHT_AGAIN_MAX: Duration = Duration::from_secs(60);
/// Beyond a second there is nothing behind that could come too close.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// Sends payments, together with all other workers.
#[derive(Clone)]
pub struct PaymentSender {
    payment_service: PaymentService,
    tasks: TaskTracker,
    places: Arc<Semaphore>,
    breaker: Arc<Mutex<Breaker>>,
    paced: Arc<OnceCell<()>>,
    started: Instant,
    stop: CancellationToken,
}

impl PaymentSender {
    /// Requests go on in `tasks` after the step that claimed them.
    pub fn new(payment_service: PaymentService, tasks: TaskTracker, stop: CancellationToken) -> Self {
        // What takes as long as the channel has for an answer is as good as failed.
        let slow_ms =
            payment_service.channels.iter().map(|channel| channel.patience.as_millis() as u64).min().unwrap_or(1000);
        let breaker = Breaker::new(BreakerTerms { slow_ms, open_ms: 2_000, ..BreakerTerms::default() });
        let (places, breaker) = (Arc::new(Semaphore::new(UNDER_WAY_MAX)), Arc::new(Mutex::new(breaker)));
        Self { payment_service, tasks, places, breaker, paced: Arc::default(), started: Instant::now(), stop }
    }

    /// Settles a batch of messages: their payments have slots, or need none.
    #[tracing::instrument(level = "debug", name = "pay", skip_all, fields(messages = messages.len()))]
    pub async fn settle(&self, messages: Vec<PaymentRequestedV1>) -> Result<(), PayError> {
        let payments: Vec<PaymentId> = messages.iter().map(|message| message.payment_id).collect();
        self.payment_service.open().await?;
        let until = Instant::now() + SETTLE_MAX;
        for channel in self.payment_service.channels.iter() {
            self.pace(channel).await?;
            self.send_all(channel, &payments, until).await?;
        }
        Ok(())
    }

    /// Sees, once, to the channel's pace in the ledger: it is for those to say who send.
    async fn pace(&self, channel: &Channel) -> Result<(), PayError> {
        let pace = async || self.payment_service.ledger.set_payment_pace(channel.name, channel.pace).await;
        Ok(self.paced.get_or_try_init(pace).await.copied()?)
    }

    /// Until all of these payments that go by this channel have slots. When that takes too long, because it rests or others
    /// have its slots, or when this process is to end, the others are brought again.
    async fn send_all(&self, channel: &Channel, payments: &[PaymentId], until: Instant) -> Result<(), PayError> {
        let ledger = &self.payment_service.ledger;
        let mut left = payments.to_vec();
        while !left.is_empty() {
            if self.stop.is_cancelled() || Instant::now() > until {
                return Ok(ledger.postpone_payments(&left, BROUGHT_AGAIN).await?);
            }
            let most = match self.admitted() {
                Ok(most) => most,
                Err(wait) => {
                    self.rest(wait).await;
                    continue;
                }
            };
            // By then the request has been answered, or has timed out.
            let ask_after = CONNECT_MAX + channel.patience + ASK_SOON;
            let claimed = ledger.claim_payments(channel.name, &left, most, ask_after).await;
            if !matches!(claimed, Ok(Claimed::Due { .. })) {
                self.breaker().withdraw();
            }
            match claimed? {
                Claimed::Nothing => return Ok(()),
                Claimed::Wait(wait) if Instant::now() + wait > until => {
                    return Ok(ledger.postpone_payments(&left, wait.min(BROUGHT_AGAIN_MAX)).await?);
                }
                // Not all workers at the same moment.
                Claimed::Wait(wait) => self.rest(wait.mul_f64(rand::random_range(1.0..1.1))).await,
                Claimed::Due { payments, now_s } => {
                    left.retain(|id| payments.iter().all(|due| due.id != *id));
                    for payment in payments {
                        let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return Ok(()) };
                        let (sender, name) = (self.clone(), channel.name);
                        self.tasks.spawn(async move {
                            if let Some(channel) = sender.payment_service.channels.get(name) {
                                sender.deliver(channel, &payment, now_s).await;
                            }
                            drop(place);
                        });
                    }
                }
            }
        }
        Ok(())
    }

    async fn rest(&self, wait: Duration) {
        self.stop.run_until_cancelled(sleep(wait.min(Duration::from_secs(1)))).await;
    }

    /// How many payments may be claimed at once: a channel that keeps failing is left alone, and then tried one by one.
    fn admitted(&self) -> Result<u32, Duration> {
        let mut breaker = self.breaker();
        let admitted = breaker.admit(self.now_ms());
        let most = if breaker.state() == BreakerState::Closed { u32::MAX } else { 1 };
        admitted.map(|()| most).map_err(|wait_ms| Duration::from_millis(wait_ms.max(50)))
    }

    async fn deliver(&self, channel: &Channel, payment: &DuePayment, now_s: i64) {
        let about = About::Payment { key: payment.id.0, order: payment.order };
        let charge = Charge { about, amount_cents: payment.amount_cents, currency: &payment.currency };
        let preparing = timeout(CONNECT_MAX, channel.prepare(&charge, now_s));
        let prepared = preparing.await.unwrap_or_else(|_| Err(SendError::Connect("not in time".to_owned())));
        let answer = match prepared {
            Ok(ready) => {
                sleep_until(payment.earliest.into()).await;
                if Instant::now() > payment.latest {
                    channel.keep(ready);
                    count("forfeited");
                    return self
                        .write(
                            payment,
                            self.payment_service.ledger.take_back(payment.id, payment.claim, SendState::Nothing, AGAIN),
                        )
                        .await;
                }
                metrics::histogram!("seckill_payment_wait_seconds").record(payment.waited.as_secs_f64());
                let sending = channel.send(ready);
                tokio::pin!(sending);
                let at_once = poll!(&mut sending);
                die_at!("pay.sent");
                let answer = async {
                    match at_once {
                        std::task::Poll::Ready(answer) => answer,
                        std::task::Poll::Pending => sending.await,
                    }
                };
                // Side by side: what the ledger takes is no slowness of the channel's.
                tokio::join!(answer, self.leave_room(channel, payment)).0
            }
            Err(error) => Err(error),
        };
        self.judge(&answer, payment.earliest);
        self.settle_one(channel, payment, answer).await;
        die_at!("pay.settled");
    }

    /// Later than usual: what has no slot yet goes as much later, so that no second sees too many (docs/outflow.md).
    async fn leave_room(&self, channel: &Channel, payment: &DuePayment) {
        let late = Instant::now().saturating_duration_since(payment.earliest);
        if late > PROMPT * 2 {
            let delay = ((late - PROMPT) / channel.pace.rate().max(1)).min(DELAY_MAX);
            let delay = if Instant::now() > payment.latest { late.min(DELAY_MAX) } else { delay };
            self.write(payment, self.payment_service.ledger.delay_channel(channel.name, delay)).await;
        }
    }

    async fn settle_one(&self, channel: &Channel, payment: &DuePayment, answer: Result<HttpAnswer, SendError>) {
        let (ledger, id, claim) = (&self.payment_service.ledger, payment.id, payment.claim);
        match answer {
            Err(error) if error.nothing_sent() => {
                count("unreachable");
                tracing::warn!(channel = channel.name, %error, "channel not reached; its payments wait");
                self.write(payment, ledger.rest_channel(channel.name, UNREACHABLE_REST)).await;
                self.write(payment, ledger.take_back(id, claim, SendState::Nothing, UNREACHABLE_REST)).await;
            }
            // Whether it has taken effect is unknown: it is asked, never guessed.
            Err(error) => {
                count("unknown");
                tracing::info!(payment = %id, %error, "no answer; the channel is asked later");
                self.write(payment, ledger.ask_soon(id, claim, ASK_SOON)).await;
            }
            Ok(answer) => match (DeliveryOutcome::of(answer.status, answer.retry_after, &answer.text()), answer.status)
            {
                (DeliveryOutcome::Done, 202) => {
                    count("taken");
                    self.write(payment, ledger.payment_taken(id, claim, self.payment_service.terms.ask_after)).await;
                }
                // It knew this key: whatever has become of it, it knows too.
                (DeliveryOutcome::Done, _) => {
                    count("taken");
                    self.write(payment, ledger.ask_soon(id, claim, Duration::ZERO)).await;
                }
                (DeliveryOutcome::NotNow(rest), _) => {
                    count("limited");
                    tracing::warn!(channel = channel.name, rest_ms = rest.as_millis(), "channel asks for a rest");
                    self.write(payment, ledger.rest_channel(channel.name, rest)).await;
                    self.write(payment, ledger.take_back(id, claim, SendState::Nothing, rest)).await;
                }
                // 409: it is at work on this key, or so.
                (DeliveryOutcome::TryAgain(why) | DeliveryOutcome::Refused(why), 409)
                | (DeliveryOutcome::TryAgain(why), _) => {
                    count("unknown");
                    tracing::info!(payment = %id, %why, "unclear answer; the channel is asked later");
                    self.write(payment, ledger.ask_soon(id, claim, ASK_SOON)).await;
                }
                // Our credentials or address are wrong, which is nothing against the payment.
                (DeliveryOutcome::Refused(why), 401 | 403 | 404 | 405) => {
                    count("unreachable");
                    tracing::error!(channel = channel.name, %why, "CHANNEL DOES NOT TAKE US: see its url and secrets");
                    self.write(payment, ledger.rest_channel(channel.name, UNREACHABLE_REST)).await;
                    self.write(payment, ledger.take_back(id, claim, SendState::Nothing, UNREACHABLE_REST * 5)).await;
                }
                (DeliveryOutcome::Refused(why), _) => {
                    count("refused");
                    tracing::warn!(payment = %id, %why, "payment refused");
                    self.write(payment, ledger.payment_refused(id, claim, &why)).await;
                }
            },
        }
    }

    fn judge(&self, answer: &Result<HttpAnswer, SendError>, since: Instant) {
        let failed = match answer {
            Ok(answer) => answer.status >= 500,
            Err(_) => true,
        };
        let took_ms = since.elapsed().as_millis() as u64;
        let now_ms = self.now_ms();
        if self.breaker().report(now_ms, CallOutcome { failed, took_ms }) {
            tracing::warn!("payment channel fails or is too slow; payments wait");
        }
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// What cannot be written down is found by asking the channel.
    async fn write(&self, payment: &DuePayment, writing: impl Future<Output = Result<(), LedgerError>>) {
        if let Err(error) = self.payment_service.ledger.in_time(writing).await {
            tracing::warn!(payment = %payment.id, %error, "not written down; the channel is asked later");
        }
    }
}

fn count(outcome: &'static str) {
    metrics::counter!("seckill_payments_sent_total", "outcome" => outcome).increment(1);
}
