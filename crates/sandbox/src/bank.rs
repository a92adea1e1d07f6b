//! The bank: the book, the file, the limits and the switches, under one lock that is held for microseconds.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::Notify;
use uuid::Uuid;

use super::book::{Book, Entry, Fate, Send};
use super::event::{Event, Outcome, Refusal, TransferRef};
use super::journal::{Journal, Unwritten};
use super::limit::{self, Arrival, Arrivals, Peak, SlidingLog};
use super::switches::{Dice, Switches};
use super::transfer::{Document, TransferKind, TransferRequest};
use seckill_webhook::backoff_ms;

/// Decisions made under one hold of the lock.
const BATCH_MAX: usize = 100;

/// Microseconds since 1970: the wall clock's at the start, carried on by the monotonic one.
#[derive(Debug, Clone, Copy)]
struct Clock {
    started: Instant,
    started_us: i64,
}

impl Clock {
    fn start() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), started_us: micros(since) }
    }

    fn now_us(self) -> i64 {
        self.started_us + micros(self.started.elapsed())
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

pub struct Bank {
    state: Mutex<State>,
    journal: Journal,
    clock: Clock,
    /// Notified when there is something new to decide, and to send.
    pub taken: Notify,
    pub owed: Notify,
}

struct State {
    book: Book,
    payments: SlidingLog,
    refunds: SlidingLog,
    arrivals: Arrivals,
    switches: Switches,
    dice: Dice,
}

/// A signed call for a payment or refund. A call that cannot be read still counts as a request.
pub struct Call {
    pub kind: TransferKind,
    pub at_us: i64,
    pub key: Option<Uuid>,
    pub asked: Result<(Uuid, TransferRequest), String>,
}

/// The answer to a call.
pub struct Reply {
    pub result: Result<Document, Refusal>,
    /// Whether this call was the first under its key.
    pub new: bool,
    pub slow: Duration,
    pub lost: bool,
}

impl Bank {
    pub fn new(journal: Journal, book: Book, switches: Switches) -> Self {
        let state = State {
            book,
            payments: SlidingLog::default(),
            refunds: SlidingLog::default(),
            arrivals: Arrivals::default(),
            dice: Dice::new(switches.seed),
            switches,
        };
        let (state, clock) = (Mutex::new(state), Clock::start());
        Self { state, journal, clock, taken: Notify::new(), owed: Notify::new() }
    }

    pub fn now_us(&self) -> i64 {
        self.clock.now_us()
    }

    pub const fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Changes the book and queues the change for the file; under the lock, so that the file has the book's order.
    fn write(&self, state: &mut State, event: &Event) {
        match state.book.apply(event) {
            Ok(()) => self.journal.append(event),
            // The event was made from the same book, under the same lock.
            Err(illegal) => tracing::error!(%illegal, ?event, "not done"),
        }
    }

    /// Waits until everything in the book is on the disk, because only then may a caller see it.
    async fn once_durable<T>(&self, seen: T) -> Result<T, Unwritten> {
        self.journal.durable(self.journal.last()).await?;
        Ok(seen)
    }

    /// Takes a payment or refund, unless it has to be refused.
    pub async fn submit(&self, call: Call) -> Result<Reply, Unwritten> {
        let reply = self.process(&call);
        if reply.new {
            self.taken.notify_one();
        }
        self.once_durable(reply).await
    }

    fn process(&self, call: &Call) -> Reply {
        let mut state = self.state.lock();
        let (outcome, result) = self.effect(&mut state, call);
        state.arrivals.push(call.kind, call.at_us, call.key, outcome);
        let (new, limited) = (outcome == limit::Outcome::Accepted, outcome == limit::Outcome::RefusedRate);
        let slow = if limited { Duration::ZERO } else { Duration::from_millis(state.switches.slow_ms) };
        let lost = result.is_ok() && {
            let State { dice, switches, .. } = &mut *state;
            dice.chance(switches.lost_answer_permille)
        };
        Reply { result, new, slow, lost }
    }

    fn effect(&self, state: &mut State, call: &Call) -> (limit::Outcome, Result<Document, Refusal>) {
        let admitted = match call.kind {
            TransferKind::Payment => state.payments.admit(call.at_us, state.switches.pay_rate as usize),
            TransferKind::Refund => state.refunds.admit(call.at_us, state.switches.refund_rate as usize),
        };
        if !admitted {
            return (limit::Outcome::RefusedRate, Err(Refusal::TooMany));
        }
        let (key, asked) = match &call.asked {
            Ok(asked) => *asked,
            Err(malformed) => return (limit::Outcome::Refused, Err(Refusal::Malformed(malformed.clone()))),
        };
        if state.dice.chance(state.switches.fail_permille) {
            return (limit::Outcome::FailedOnPurpose, Err(Refusal::OnPurpose));
        }
        let due_us = self.now_us() + state.switches.confirm_ms.cast_signed() * 1000;
        let outcome = match state.book.take(key, asked, due_us) {
            Ok(Some(event)) => {
                self.write(state, &event);
                limit::Outcome::Accepted
            }
            Ok(None) => limit::Outcome::Repeated,
            Err(refusal) => return (limit::Outcome::Refused, Err(refusal)),
        };
        (outcome, state.book.document(TransferRef { kind: call.kind, key }).ok_or(Refusal::Unknown))
    }

    /// Decides all transfers that are due. Returns how long until the next is due, if there is one.
    pub fn decide_due(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        let now_us = self.now_us();
        for _ in 0..BATCH_MAX {
            let (due_us, which) = state.book.next_undecided()?;
            if due_us > now_us {
                return Some(ahead(due_us, now_us));
            }
            let State { dice, switches, .. } = &mut *state;
            let succeeded = dice.outcome(switches);
            // A transfer that waits for its decision can always be decided.
            let _ = self.decide_now(&mut state, which, succeeded);
        }
        Some(Duration::ZERO)
    }

    fn decide_now(&self, state: &mut State, which: TransferRef, succeeded: bool) -> Result<(), Refusal> {
        let asked = state.book.document(which).ok_or(Refusal::Unknown)?.asked;
        let now_us = self.now_us();
        let verdict = state.dice.verdict(&state.switches, &asked, succeeded, now_us);
        let event = state.book.decide(which, verdict, now_us)?;
        self.write(state, &event);
        self.owed.notify_one();
        Ok(())
    }

    /// Decides a transfer at an operator's request.
    pub async fn decide(&self, which: TransferRef, succeeded: bool) -> Result<Result<Document, Refusal>, Unwritten> {
        let decided = {
            let mut state = self.state.lock();
            let decided = self.decide_now(&mut state, which, succeeded);
            decided.and_then(|()| state.book.document(which).ok_or(Refusal::Unknown))
        };
        self.once_durable(decided).await
    }

    /// Sends the callback of the payment or refund with this key once more.
    pub async fn send_again(&self, key: Uuid) -> Result<Result<(), Refusal>, Unwritten> {
        let owed = {
            let mut state = self.state.lock();
            let again = state.book.again(transfer_of(&state.book, key), self.now_us());
            again.map(|event| self.write(&mut state, &event))
        };
        self.owed.notify_one();
        self.once_durable(owed).await
    }

    /// The next callback to be sent, whose decision is on the disk; or how long until there is one.
    pub async fn next_send(&self) -> Result<Result<Send, Option<Duration>>, Unwritten> {
        let now_us = self.now_us();
        let next = self.state.lock().book.next_send(now_us);
        self.once_durable(next.map_err(|due_us| due_us.map(|due_us| ahead(due_us, now_us)))).await
    }

    /// Ends a callback. If this line is lost in a crash, the callback is sent once more.
    pub fn sent(&self, send: u64, outcome: Outcome) {
        self.write(&mut self.state.lock(), &Event::Ended { send, outcome });
    }

    /// Puts a callback off after so many failed attempts.
    pub fn put_off(&self, send: u64, attempts: u32, base_ms: u64, cap_ms: u64) {
        let mut state = self.state.lock();
        let wait_ms = backoff_ms(attempts, base_ms, cap_ms, state.dice.unit());
        state.book.put_off(send, self.now_us() + wait_ms.cast_signed() * 1000);
        drop(state);
        self.owed.notify_one();
    }

    pub async fn document(&self, which: TransferRef) -> Result<Option<Document>, Unwritten> {
        let document = self.state.lock().book.document(which);
        self.once_durable(document).await
    }

    pub async fn callback(&self, key: Uuid) -> Result<Option<(u64, Fate)>, Unwritten> {
        let callback = {
            let state = self.state.lock();
            state.book.callback(transfer_of(&state.book, key))
        };
        self.once_durable(callback).await
    }

    pub async fn ledger(&self, after: u64, limit: usize) -> Result<(Vec<Entry>, bool), Unwritten> {
        let page = self.state.lock().book.ledger(after, limit);
        self.once_durable(page).await
    }

    pub fn arrivals(&self, kind: TransferKind, after: u64, limit: usize) -> (Vec<Arrival>, bool) {
        self.state.lock().arrivals.after(kind, after, limit)
    }

    pub fn peak(&self, kind: TransferKind) -> Peak {
        let moments = self.state.lock().arrivals.moments(kind);
        Peak::of(moments)
    }

    pub fn switches(&self) -> Switches {
        self.state.lock().switches.clone()
    }

    pub fn switch(&self, given: Map<String, Value>) -> Result<Switches, Refusal> {
        let mut state = self.state.lock();
        let reseeded = given.contains_key("seed");
        state.switches = state.switches.with(given).map_err(Refusal::Malformed)?;
        if reseeded {
            state.dice = Dice::new(state.switches.seed);
        }
        Ok(state.switches.clone())
    }
}

fn ahead(due_us: i64, now_us: i64) -> Duration {
    Duration::from_micros((due_us - now_us).max(0).unsigned_abs())
}

/// The transfer with this key. Where a payment and a refund share a key, the payment.
fn transfer_of(book: &Book, key: Uuid) -> TransferRef {
    let payment = TransferRef { kind: TransferKind::Payment, key };
    if book.document(payment).is_some() { payment } else { TransferRef { kind: TransferKind::Refund, key } }
}
