//! The bank: the book, the file, the limits and the switches under one lock, which is held for microseconds.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tokio::sync::Notify;
use uuid::Uuid;

use super::book::{Book, Entry, Fate, Send};
use super::event::{Event, Outcome, Refusal, Which};
use super::journal::{Journal, Unwritten};
use super::limit::{self, Arrival, Arrivals, Peak, SlidingLog};
use super::switches::{Dice, Switches};
use super::transfer::{Asked, Document, Kind};
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
    /// Rung when there is something new to decide, and to send.
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

/// A signed call for a payment or refund. What could not be read of it counts as a request all the same.
pub struct Call {
    pub kind: Kind,
    pub at_us: i64,
    pub key: Option<Uuid>,
    pub asked: Result<(Uuid, Asked), String>,
}

/// What is answered to a call, and how.
pub struct Reply {
    pub result: Result<Document, Refusal>,
    /// Whether it was taken just now.
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the book and puts it down for the file; under the lock, so that the file has the book's order.
    fn write(&self, state: &mut State, event: &Event) {
        match state.book.apply(event) {
            Ok(()) => self.journal.append(event),
            // It was judged by the same book, under the same lock.
            Err(illegal) => tracing::error!(%illegal, ?event, "not done"),
        }
    }

    /// What was seen of the book may be told as soon as it is on the disk.
    async fn told<T>(&self, seen: T) -> Result<T, Unwritten> {
        self.journal.durable(self.journal.last()).await?;
        Ok(seen)
    }

    /// Takes a payment or refund, unless something is against it.
    pub async fn ask(&self, call: Call) -> Result<Reply, Unwritten> {
        let reply = self.judge(&call);
        if reply.new {
            self.taken.notify_one();
        }
        self.told(reply).await
    }

    fn judge(&self, call: &Call) -> Reply {
        let mut state = self.lock();
        let (outcome, result) = self.effect(&mut state, call);
        state.arrivals.push(call.kind, call.at_us, call.key, outcome);
        let (new, limited) = (outcome == limit::Outcome::Accepted, outcome == limit::Outcome::RefusedRate);
        let slow = if limited { Duration::ZERO } else { Duration::from_millis(state.switches.slow_ms) };
        let lost = result.is_ok() && {
            let State { dice, switches, .. } = &mut *state;
            dice.falls(switches.lost_answer_permille)
        };
        Reply { result, new, slow, lost }
    }

    fn effect(&self, state: &mut State, call: &Call) -> (limit::Outcome, Result<Document, Refusal>) {
        let admitted = match call.kind {
            Kind::Payment => state.payments.admit(call.at_us, state.switches.pay_rate as usize),
            Kind::Refund => state.refunds.admit(call.at_us, state.switches.refund_rate as usize),
        };
        if !admitted {
            return (limit::Outcome::RefusedRate, Err(Refusal::TooMany));
        }
        let (key, asked) = match &call.asked {
            Ok(asked) => *asked,
            Err(malformed) => return (limit::Outcome::Refused, Err(Refusal::Malformed(malformed.clone()))),
        };
        if state.dice.falls(state.switches.fail_permille) {
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
        (outcome, state.book.document(Which { kind: call.kind, key }).ok_or(Refusal::Unknown))
    }

    /// Decides what is due. When the next is due, where one is.
    pub fn decide_due(&self) -> Option<Duration> {
        let mut state = self.lock();
        let now_us = self.now_us();
        for _ in 0..BATCH_MAX {
            let (due_us, which) = state.book.next_undecided()?;
            if due_us > now_us {
                return Some(ahead(due_us, now_us));
            }
            let State { dice, switches, .. } = &mut *state;
            let succeeded = dice.outcome(switches);
            // What waits for a decision can be decided.
            let _ = self.decide_now(&mut state, which, succeeded);
        }
        Some(Duration::ZERO)
    }

    fn decide_now(&self, state: &mut State, which: Which, succeeded: bool) -> Result<(), Refusal> {
        let asked = state.book.document(which).ok_or(Refusal::Unknown)?.asked;
        let now_us = self.now_us();
        let verdict = state.dice.verdict(&state.switches, &asked, succeeded, now_us);
        let event = state.book.decide(which, verdict, now_us)?;
        self.write(state, &event);
        self.owed.notify_one();
        Ok(())
    }

    /// Decides by hand.
    pub async fn decide(&self, which: Which, succeeded: bool) -> Result<Result<Document, Refusal>, Unwritten> {
        let decided = {
            let mut state = self.lock();
            let decided = self.decide_now(&mut state, which, succeeded);
            decided.and_then(|()| state.book.document(which).ok_or(Refusal::Unknown))
        };
        self.told(decided).await
    }

    /// Sends the callback of this key's payment once more, or of its refund.
    pub async fn send_again(&self, key: Uuid) -> Result<Result<(), Refusal>, Unwritten> {
        let owed = {
            let mut state = self.lock();
            let again = state.book.again(named(&state.book, key), self.now_us());
            again.map(|event| self.write(&mut state, &event))
        };
        self.owed.notify_one();
        self.told(owed).await
    }

    /// The next callback to be sent, once its decision is on the disk; or how long until there is one.
    pub async fn next_send(&self) -> Result<Result<Send, Option<Duration>>, Unwritten> {
        let now_us = self.now_us();
        let next = self.lock().book.next_send(now_us);
        self.told(next.map_err(|due_us| due_us.map(|due_us| ahead(due_us, now_us)))).await
    }

    /// A callback needs no more attempts. Should this be lost, it is sent once more.
    pub fn sent(&self, send: u64, outcome: Outcome) {
        self.write(&mut self.lock(), &Event::Ended { send, outcome });
    }

    /// A callback was not heard, so often: later again.
    pub fn put_off(&self, send: u64, attempts: u32, base_ms: u64, cap_ms: u64) {
        let mut state = self.lock();
        let wait_ms = backoff_ms(attempts, base_ms, cap_ms, state.dice.unit());
        state.book.put_off(send, self.now_us() + wait_ms.cast_signed() * 1000);
        drop(state);
        self.owed.notify_one();
    }

    pub async fn document(&self, which: Which) -> Result<Option<Document>, Unwritten> {
        let document = self.lock().book.document(which);
        self.told(document).await
    }

    pub async fn callback(&self, key: Uuid) -> Result<Option<(u64, Fate)>, Unwritten> {
        let callback = {
            let state = self.lock();
            state.book.callback(named(&state.book, key))
        };
        self.told(callback).await
    }

    pub async fn ledger(&self, after: u64, limit: usize) -> Result<(Vec<Entry>, bool), Unwritten> {
        let page = self.lock().book.ledger(after, limit);
        self.told(page).await
    }

    pub fn arrivals(&self, kind: Kind, after: u64, limit: usize) -> (Vec<Arrival>, bool) {
        self.lock().arrivals.after(kind, after, limit)
    }

    pub fn peak(&self, kind: Kind) -> Peak {
        let moments = self.lock().arrivals.moments(kind);
        Peak::of(moments)
    }

    pub fn switches(&self) -> Switches {
        self.lock().switches.clone()
    }

    pub fn switch(&self, given: Map<String, Value>) -> Result<Switches, Refusal> {
        let mut state = self.lock();
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

/// Payments and refunds have keys of their own; where both have one, it is the payment's.
fn named(book: &Book, key: Uuid) -> Which {
    let payment = Which { kind: Kind::Payment, key };
    if book.document(payment).is_some() { payment } else { Which { kind: Kind::Refund, key } }
}
