//! The bank's book. Pure: calls are judged into events, events are written down (`journal`), and an event changes the book
//! in the same way when it happens and when it is read back.
//!
//! Everything that ever happened is kept in memory: it is bounded by the file it was read from, and by nothing else.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;
use uuid::Uuid;

use super::event::{Event, Outcome, Refusal, TransferRef, Verdict};
use super::transfer::{Cause, Document, Status, TransferKind, TransferRequest};

/// An event that cannot follow on what the book says: the file is not what was written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Illegal(&'static str);

/// A payment or refund that was taken.
#[derive(Debug)]
struct Transfer {
    n: u64,
    asked: TransferRequest,
    status: Status,
    due_us: i64,
    /// Of a payment: what refunds that did not fail take of it.
    refunded_cents: i64,
    message: Option<Message>,
}

/// The callback of a decision.
#[derive(Debug)]
struct Message {
    n: u64,
    at_us: i64,
    told_cents: i64,
    fate: Fate,
}

/// What became of a callback, counted by attempts to have it heard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Fate {
    pub waiting: u32,
    pub delivered: u32,
    pub refused: u32,
    pub given_up: u32,
}

/// A callback that is to be sent now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Send {
    pub n: u64,
    /// The same however often it is sent.
    pub message: u64,
    pub first_due_us: i64,
    pub at_us: i64,
    pub document: Document,
}

/// Money that moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    pub seq: u64,
    pub kind: TransferKind,
    pub key: Uuid,
    #[serde(flatten)]
    pub asked: TransferRequest,
    pub status: Status,
    pub applied_at_us: i64,
}

#[derive(Debug, Default)]
pub struct Book {
    transfers: HashMap<TransferRef, Transfer>,
    moved: Vec<(TransferRef, i64)>,
    undecided: BTreeSet<(i64, TransferRef)>,
    /// Callbacks that are owed, and when each was due first.
    owed: BTreeMap<u64, (TransferRef, i64)>,
    /// Those of them that nobody is sending, by when they are due.
    waiting: BTreeSet<(i64, u64)>,
    payments: u64,
    refunds: u64,
    messages: u64,
    sends: u64,
}

// Judging: what a call would do. Nothing is changed.
impl Book {
    /// Takes a payment or refund; `None` where it was taken before.
    pub fn take(&self, key: Uuid, asked: TransferRequest, due_us: i64) -> Result<Option<Event>, Refusal> {
        let kind = asked.kind();
        if let Some(known) = self.transfers.get(&TransferRef { kind, key }) {
            return if known.asked == asked { Ok(None) } else { Err(Refusal::Mismatch) };
        }
        if let Cause::Refund { payment_key } = asked.cause {
            self.refundable(payment_key, &asked).map_err(Refusal::NotRefundable)?;
        }
        let taken = if kind == TransferKind::Payment { self.payments } else { self.refunds };
        Ok(Some(Event::Taken { key, n: taken + 1, asked, due_us }))
    }

    fn refundable(&self, payment: Uuid, asked: &TransferRequest) -> Result<(), &'static str> {
        let payment = TransferRef { kind: TransferKind::Payment, key: payment };
        let payment = self.transfers.get(&payment).ok_or("there is no such payment")?;
        if payment.status != Status::Succeeded {
            return Err("the payment did not succeed");
        }
        if payment.asked.currency != asked.currency {
            return Err("the payment is in another currency");
        }
        // What is left is never negative, so this cannot overflow.
        if asked.amount_cents > payment.asked.amount_cents - payment.refunded_cents {
            return Err("the payment's refunds would exceed it");
        }
        Ok(())
    }

    /// Decides what is pending.
    pub fn decide(&self, which: TransferRef, verdict: Verdict, at_us: i64) -> Result<Event, Refusal> {
        match self.transfers.get(&which).ok_or(Refusal::Unknown)?.status {
            Status::Pending => Ok(Event::Decided { which, verdict, message: self.messages + 1, at_us }),
            Status::Succeeded | Status::Failed => Err(Refusal::Decided),
        }
    }

    /// Sends the callback once more.
    pub fn again(&self, which: TransferRef, due_us: i64) -> Result<Event, Refusal> {
        let transfer = self.transfers.get(&which).ok_or(Refusal::Unknown)?;
        transfer.message.as_ref().ok_or(Refusal::NotDecided)?;
        Ok(Event::Again { which, send: self.sends + 1, due_us })
    }
}

// Changing.
impl Book {
    pub fn apply(&mut self, event: &Event) -> Result<(), Illegal> {
        match event {
            Event::Taken { key, n, asked, due_us } => self.taken(*key, *n, *asked, *due_us),
            Event::Decided { which, verdict, message, at_us } => self.decided(*which, verdict, *message, *at_us),
            Event::Again { which, send, due_us } if *send == self.sends + 1 => self.owe(*which, *due_us),
            Event::Again { .. } => Err(Illegal("a callback's number is out of order")),
            Event::Ended { send, outcome } => self.ended(*send, *outcome),
        }
    }

    fn taken(&mut self, key: Uuid, n: u64, asked: TransferRequest, due_us: i64) -> Result<(), Illegal> {
        // The same checks as when it was asked.
        match self.take(key, asked, due_us) {
            Ok(Some(Event::Taken { n: next, .. })) if next == n => {}
            _ => return Err(Illegal("this cannot have been taken")),
        }
        match asked.cause {
            Cause::Payment { .. } => self.payments = n,
            Cause::Refund { payment_key } => {
                self.refunds = n;
                self.refunded(payment_key, asked.amount_cents);
            }
        }
        let which = TransferRef { kind: asked.kind(), key };
        let taken = Transfer { n, asked, status: Status::Pending, due_us, refunded_cents: 0, message: None };
        self.transfers.insert(which, taken);
        self.undecided.insert((due_us, which));
        Ok(())
    }

    fn refunded(&mut self, payment: Uuid, cents: i64) {
        if let Some(payment) = self.transfers.get_mut(&TransferRef { kind: TransferKind::Payment, key: payment }) {
            payment.refunded_cents += cents;
        }
    }

    fn decided(&mut self, which: TransferRef, verdict: &Verdict, message: u64, at_us: i64) -> Result<(), Illegal> {
        let transfer = self.transfers.get_mut(&which).ok_or(Illegal("decided, and never taken"))?;
        if transfer.status != Status::Pending || message != self.messages + 1 {
            return Err(Illegal("decided twice, or out of order"));
        }
        transfer.status = if verdict.succeeded { Status::Succeeded } else { Status::Failed };
        transfer.message = Some(Message { n: message, at_us, told_cents: verdict.told_cents, fate: Fate::default() });
        self.undecided.remove(&(transfer.due_us, which));
        self.messages = message;
        match transfer.asked.cause {
            _ if verdict.succeeded => self.moved.push((which, at_us)),
            Cause::Refund { payment_key } => {
                let back = -transfer.asked.amount_cents;
                self.refunded(payment_key, back);
            }
            Cause::Payment { .. } => {}
        }
        verdict.due_us.iter().try_for_each(|due_us| self.owe(which, *due_us))
    }

    fn owe(&mut self, which: TransferRef, due_us: i64) -> Result<(), Illegal> {
        self.fate(which).ok_or(Illegal("a callback of nothing that was decided"))?.waiting += 1;
        self.sends += 1;
        self.owed.insert(self.sends, (which, due_us));
        self.waiting.insert((due_us, self.sends));
        Ok(())
    }

    fn ended(&mut self, send: u64, outcome: Outcome) -> Result<(), Illegal> {
        let (which, due_us) = self.owed.remove(&send).ok_or(Illegal("a callback ended twice"))?;
        self.waiting.remove(&(due_us, send));
        if let Some(fate) = self.fate(which) {
            fate.waiting -= 1;
            *match outcome {
                Outcome::Delivered => &mut fate.delivered,
                Outcome::Refused => &mut fate.refused,
                Outcome::GivenUp => &mut fate.given_up,
            } += 1;
        }
        Ok(())
    }

    fn fate(&mut self, which: TransferRef) -> Option<&mut Fate> {
        Some(&mut self.transfers.get_mut(&which)?.message.as_mut()?.fate)
    }

    /// The next callback that is due, for its sender; or when there will be one. What was given out and neither ended nor
    /// put off is given out again after a restart.
    pub fn next_send(&mut self, now_us: i64) -> Result<Send, Option<i64>> {
        let &(due_us, n) = self.waiting.first().ok_or(None)?;
        if due_us > now_us {
            return Err(Some(due_us));
        }
        self.waiting.pop_first();
        let &(which, first_due_us) = self.owed.get(&n).ok_or(None)?;
        let transfer = self.transfers.get(&which).ok_or(None)?;
        let message = transfer.message.as_ref().ok_or(None)?;
        let asked = TransferRequest { amount_cents: message.told_cents, ..transfer.asked };
        let document = Document::new(which.key, transfer.n, transfer.status, asked);
        Ok(Send { n, message: message.n, first_due_us, at_us: message.at_us, document })
    }

    /// A callback was not heard: its sender shall come for it again.
    pub fn put_off(&mut self, send: u64, due_us: i64) {
        if self.owed.contains_key(&send) {
            self.waiting.insert((due_us, send));
        }
    }
}

// Reading.
impl Book {
    pub fn document(&self, which: TransferRef) -> Option<Document> {
        let transfer = self.transfers.get(&which)?;
        Some(Document::new(which.key, transfer.n, transfer.status, transfer.asked))
    }

    /// The number of a decision's callback, and what became of it.
    pub fn callback(&self, which: TransferRef) -> Option<(u64, Fate)> {
        let message = self.transfers.get(&which)?.message.as_ref()?;
        Some((message.n, message.fate))
    }

    /// What waits longest to be decided, and since when it is due.
    pub fn next_undecided(&self) -> Option<(i64, TransferRef)> {
        self.undecided.first().copied()
    }

    /// Money that moved, in order, after an entry; and whether there is more.
    pub fn ledger(&self, after: u64, limit: usize) -> (Vec<Entry>, bool) {
        let from = usize::try_from(after).unwrap_or(usize::MAX).min(self.moved.len());
        let rows = self.moved[from..].iter().zip(after + 1..).take(limit);
        let entry = |(&(which, applied_at_us), seq)| {
            let Transfer { asked, status, .. } = self.transfers.get(&which)?;
            Some(Entry { seq, kind: which.kind, key: which.key, asked: *asked, status: *status, applied_at_us })
        };
        (rows.filter_map(entry).collect(), self.moved.len() - from > limit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any call; keys are few, so that calls meet.
    #[derive(Debug, Clone)]
    enum Any {
        Pay { key: u128, cents: i64 },
        Refund { key: u128, payment: u128, cents: i64 },
        Decide { kind: TransferKind, key: u128, succeeded: bool, sends: usize },
        Again { kind: TransferKind, key: u128 },
        End { send: u64 },
    }

    fn any_call() -> impl Strategy<Value = Any> {
        let kind = prop_oneof![Just(TransferKind::Payment), Just(TransferKind::Refund)];
        prop_oneof![
            (0..4_u128, 0..3_i64).prop_map(|(key, cents)| Any::Pay { key, cents }),
            (0..6_u128, 0..4_u128, 1..3_i64).prop_map(|(key, payment, cents)| Any::Refund { key, payment, cents }),
            (kind.clone(), 0..6_u128, any::<bool>(), 0..3_usize)
                .prop_map(|(kind, key, succeeded, sends)| Any::Decide { kind, key, succeeded, sends }),
            (kind, 0..6_u128).prop_map(|(kind, key)| Any::Again { kind, key }),
            (1..20_u64).prop_map(|send| Any::End { send }),
        ]
    }

    fn judge(book: &Book, call: &Any, now_us: i64) -> Option<Event> {
        let currency = "CNY".to_owned().try_into().unwrap();
        let key = Uuid::from_u128;
        match *call {
            Any::Pay { key: of, cents } => {
                let cause = Cause::Payment { order_id: Uuid::nil() };
                book.take(key(of), TransferRequest { cause, amount_cents: cents, currency }, now_us).ok()?
            }
            Any::Refund { key: of, payment, cents } => {
                let cause = Cause::Refund { payment_key: key(payment) };
                book.take(key(of), TransferRequest { cause, amount_cents: cents, currency }, now_us).ok()?
            }
            Any::Decide { kind, key: of, succeeded, sends } => {
                let verdict = Verdict { succeeded, told_cents: 1, due_us: vec![now_us; sends] };
                book.decide(TransferRef { kind, key: key(of) }, verdict, now_us).ok()
            }
            Any::Again { kind, key: of } => book.again(TransferRef { kind, key: key(of) }, now_us).ok(),
            Any::End { send } => {
                book.owed.contains_key(&send).then_some(Event::Ended { send, outcome: Outcome::Delivered })
            }
        }
    }

    /// Refunds that took effect never exceed their payment, which took effect before them; and nothing moves twice.
    fn sound(book: &Book) -> bool {
        let (entries, _) = book.ledger(0, usize::MAX);
        let mut left = HashMap::new();
        entries.iter().all(|entry| match entry.asked.cause {
            Cause::Payment { .. } => left.insert(entry.key, entry.asked.amount_cents).is_none(),
            Cause::Refund { payment_key } => left.get_mut(&payment_key).is_some_and(|cents| {
                *cents -= entry.asked.amount_cents;
                *cents >= 0
            }),
        })
    }

    proptest! {
        #[test]
        fn whatever_is_called_money_is_right_and_the_file_gives_the_same_book(
            calls in prop::collection::vec(any_call(), 1..120),
        ) {
            let (mut book, mut again) = (Book::default(), Book::default());
            for (now_us, call) in (0..).zip(&calls) {
                let Some(event) = judge(&book, call, now_us) else { continue };
                book.apply(&event).unwrap();
                let line = serde_json::to_vec(&event).unwrap();
                again.apply(&serde_json::from_slice(&line).unwrap()).unwrap();
                prop_assert!(sound(&book));
            }
            prop_assert_eq!(format!("{:?}", (&book.moved, &book.undecided, &book.owed, &book.waiting)),
                format!("{:?}", (&again.moved, &again.undecided, &again.owed, &again.waiting)));
        }
    }
}
