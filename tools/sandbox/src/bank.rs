//! The bank: the book, the file, the limits and the switches. One lock protects them, and is held for microseconds.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::book::{Book, Entry, Fate, Send};
use super::event::{Event, Outcome, TransferRef};
use super::journal::Journal;
use super::limit::{self, Arrival, Arrivals, Peak, SlidingLog};
use super::problem::Problem;
use super::switches::{Dice, Switches};
use super::transfer::{Document, TransferKind, TransferRequest};
use seckill_webhook::backoff_ms;

/// The most decisions that are made while the lock is held once.
const BATCH_MAX: usize = 100;

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) struct Bank {
    state: Mutex<State>,
    /// Cancelled when the file could not be written: the bank must stop.
    pub file_failed: CancellationToken,
    /// When the bank was started. The wall clock is read once; the monotonic clock measures the time since then.
    started: Instant,
    started_us: i64,
    /// Notified when a transfer was taken and waits for its decision.
    pub transfer_taken: Notify,
    /// Notified when the callbacks to send, or their times, changed.
    pub callbacks_changed: Notify,
}

struct State {
    book: Book,
    journal: Journal,
    payments: Requests,
    refunds: Requests,
    switches: Switches,
    dice: Dice,
}

/// The requests of a kind.
#[derive(Default)]
struct Requests {
    limit: SlidingLog,
    arrivals: Arrivals,
}

impl State {
    const fn requests(&mut self, kind: TransferKind) -> &mut Requests {
        match kind {
            TransferKind::Payment => &mut self.payments,
            TransferKind::Refund => &mut self.refunds,
        }
    }
}

/// A signed call for a payment or refund. A malformed call counts as a request too.
pub(crate) struct Call {
    pub kind: TransferKind,
    pub at_us: i64,
    pub key: Option<Uuid>,
    /// The key and the request, or why the call is malformed.
    pub parsed: Result<(Uuid, TransferRequest), String>,
}

/// The answer to a call.
pub(crate) struct Reply {
    /// The document, and whether this call was the first under its key. [`Problem::Lost`] if the call took effect, but the answer
    /// is lost (switch `lost_answer_permille`).
    pub result: Result<(Document, bool), Problem>,
    /// How long the answer is delayed (switch `slow_ms`).
    pub delay: Duration,
}

impl Bank {
    pub(crate) fn new(journal: Journal, book: Book, switches: Switches) -> Self {
        let state = State {
            book,
            journal,
            payments: Requests::default(),
            refunds: Requests::default(),
            dice: Dice::new(switches.seed),
            switches,
        };
        Self {
            state: Mutex::new(state),
            file_failed: CancellationToken::new(),
            started: Instant::now(),
            started_us: micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
            transfer_taken: Notify::new(),
            callbacks_changed: Notify::new(),
        }
    }

    /// Microseconds since 1970.
    pub(crate) fn now_us(&self) -> i64 {
        self.started_us + micros(self.started.elapsed())
    }

    /// Writes a change to the file, and then makes it in the book.
    fn record(&self, state: &mut State, event: &Event) -> Result<(), Problem> {
        if let Err(error) = state.journal.append(event) {
            tracing::error!(%error, "sandbox.data_file cannot be written; the bank stops");
            self.file_failed.cancel();
            return Err(Problem::Unwritten);
        }
        if let Err(illegal) = state.book.apply(event) {
            // This cannot happen: the event was made from the same book while the same lock was held.
            tracing::error!(%illegal, ?event, "the book refused an event; the event was not applied");
        }
        Ok(())
    }

    /// Takes a payment or refund, or refuses the call.
    pub(crate) fn submit(&self, call: &Call) -> Reply {
        let mut state = self.state.lock();
        let (outcome, result) = self.execute(&mut state, call);
        state.requests(call.kind).arrivals.push(call.at_us, call.key, outcome);
        let is_new = outcome == limit::Outcome::Accepted;
        if is_new {
            self.transfer_taken.notify_one();
        }
        let slow_ms = if outcome == limit::Outcome::RefusedRate { 0 } else { state.switches.slow_ms };
        let lost_permille = state.switches.lost_answer_permille;
        let lost = result.is_ok() && state.dice.chance(lost_permille);
        let result = if lost { Err(Problem::Lost) } else { result.map(|document| (document, is_new)) };
        Reply { result, delay: Duration::from_millis(slow_ms) }
    }

    fn execute(&self, state: &mut State, call: &Call) -> (limit::Outcome, Result<Document, Problem>) {
        let rate = match call.kind {
            TransferKind::Payment => state.switches.pay_rate,
            TransferKind::Refund => state.switches.refund_rate,
        };
        if !state.requests(call.kind).limit.admit(call.at_us, rate as usize) {
            return (limit::Outcome::RefusedRate, Err(Problem::TooMany));
        }
        let (key, request) = match &call.parsed {
            Ok(parsed) => parsed.clone(),
            Err(malformed) => return (limit::Outcome::Refused, Err(Problem::Malformed(malformed.clone()))),
        };
        if state.dice.chance(state.switches.fail_permille) {
            return (limit::Outcome::FailedOnPurpose, Err(Problem::OnPurpose));
        }
        let due_us = self.now_us() + state.switches.confirm_ms.cast_signed() * 1000;
        let taken = state.book.take(key, request, due_us);
        let outcome = match taken.and_then(|event| event.map(|event| self.record(state, &event)).transpose()) {
            Ok(Some(())) => limit::Outcome::Accepted,
            Ok(None) => limit::Outcome::Repeated,
            Err(refusal) => return (limit::Outcome::Refused, Err(refusal)),
        };
        (outcome, state.book.document(TransferRef { kind: call.kind, key }).ok_or(Problem::Unknown))
    }

    /// Decides the transfers that are due, at most 100. Returns the time until the next transfer is due, or `None` if no
    /// transfer is pending, or the bank must stop.
    pub(crate) fn decide_due(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        let now_us = self.now_us();
        for _ in 0..BATCH_MAX {
            let (due_us, which) = state.book.next_undecided()?;
            if due_us > now_us {
                return Some(time_until(due_us, now_us));
            }
            let State { dice, switches, .. } = &mut *state;
            let succeeded = dice.outcome(switches);
            // The transfer is pending, so this fails only if the file cannot be written.
            self.decide_now(&mut state, which, succeeded).ok()?;
        }
        Some(Duration::ZERO)
    }

    fn decide_now(&self, state: &mut State, which: TransferRef, succeeded: bool) -> Result<(), Problem> {
        let request = state.book.document(which).ok_or(Problem::Unknown)?.request;
        let now_us = self.now_us();
        let verdict = state.dice.verdict(&state.switches, &request, succeeded, now_us);
        let event = state.book.decide(which, verdict, now_us)?;
        self.record(state, &event)?;
        self.callbacks_changed.notify_one();
        Ok(())
    }

    /// Decides a transfer at an operator's request.
    pub(crate) fn decide(&self, which: TransferRef, succeeded: bool) -> Result<Document, Problem> {
        let mut state = self.state.lock();
        self.decide_now(&mut state, which, succeeded)?;
        state.book.document(which).ok_or(Problem::Unknown)
    }

    /// Sends the callback of the payment or refund with this key once more.
    pub(crate) fn send_again(&self, key: Uuid) -> Result<(), Problem> {
        let mut state = self.state.lock();
        let event = state.book.send_again(transfer_of(&state.book, key), self.now_us())?;
        self.record(&mut state, &event)?;
        self.callbacks_changed.notify_one();
        Ok(())
    }

    /// The next callback to send. If none is due: the time until one is due, or `None` if none is waiting.
    pub(crate) fn next_send(&self) -> Result<Send, Option<Duration>> {
        let now_us = self.now_us();
        let next = self.state.lock().book.next_send(now_us);
        next.map_err(|due_us| due_us.map(|due_us| time_until(due_us, now_us)))
    }

    /// Ends a callback. If the file does not get this line, the callback is sent once more after the next start.
    pub(crate) fn sent(&self, send: u64, outcome: Outcome) {
        let _ = self.record(&mut self.state.lock(), &Event::Ended { send, outcome });
    }

    /// Postpones a callback after a failed attempt.
    pub(crate) fn postpone(&self, send: u64, base_ms: u64, cap_ms: u64) {
        let mut state = self.state.lock();
        let (now_us, unit) = (self.now_us(), state.dice.unit());
        let wait_us = |failed| backoff_ms(failed, base_ms, cap_ms, unit).cast_signed() * 1000;
        state.book.postpone(send, |failed| now_us + wait_us(failed));
        drop(state);
        self.callbacks_changed.notify_one();
    }

    pub(crate) fn document(&self, which: TransferRef) -> Option<Document> {
        self.state.lock().book.document(which)
    }

    pub(crate) fn callback(&self, key: Uuid) -> Option<(u64, Fate)> {
        let state = self.state.lock();
        state.book.callback(transfer_of(&state.book, key))
    }

    pub(crate) fn ledger(&self, after: u64, limit: usize) -> (Vec<Entry>, bool) {
        self.state.lock().book.ledger(after, limit)
    }

    pub(crate) fn arrivals(&self, kind: TransferKind, after: u64, limit: usize) -> (Vec<Arrival>, bool) {
        self.state.lock().requests(kind).arrivals.after(after, limit)
    }

    pub(crate) fn peak(&self, kind: TransferKind) -> Peak {
        let times_us = self.state.lock().requests(kind).arrivals.times_us();
        Peak::of(times_us)
    }

    pub(crate) fn switches(&self) -> Switches {
        self.state.lock().switches.clone()
    }

    pub(crate) fn switch(&self, given: &Map<String, Value>) -> Result<Switches, Problem> {
        let mut state = self.state.lock();
        let reseeded = given.contains_key("seed");
        state.switches = state.switches.with(given).map_err(Problem::Malformed)?;
        if reseeded {
            state.dice = Dice::new(state.switches.seed);
        }
        Ok(state.switches.clone())
    }
}

fn time_until(due_us: i64, now_us: i64) -> Duration {
    Duration::from_micros((due_us - now_us).max(0).unsigned_abs())
}

/// The transfer with this key. If a payment and a refund have the same key, this is the payment.
fn transfer_of(book: &Book, key: Uuid) -> TransferRef {
    let payment = TransferRef { kind: TransferKind::Payment, key };
    if book.document(payment).is_some() { payment } else { TransferRef { kind: TransferKind::Refund, key } }
}
