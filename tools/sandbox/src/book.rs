//! The bank's book: its payments, refunds and callbacks. The book does no I/O. A call becomes an event, the journal writes the
//! event to the file, and the event changes the book. An event that is read back from the file changes the book in the same way.
//!
//! The book keeps all transfers in memory. Memory grows with the file, and has no other bound.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;
use uuid::Uuid;

use super::event::{Event, Outcome, TransferRef, Verdict};
use super::problem::Problem;
use super::transfer::{Cause, Document, Status, TransferKind, TransferRequest};

/// An event that contradicts the book: the file is damaged.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Illegal(&'static str);

/// A payment or refund that the bank has taken.
#[derive(Debug)]
struct Transfer {
    n: u64,
    request: TransferRequest,
    status: Status,
    due_us: i64,
    /// For a payment: the sum of its refunds, without failed ones.
    refunded_cents: i64,
    message: Option<Message>,
    reason: Option<String>,
}

/// The callback of a decision.
#[derive(Debug)]
struct Message {
    n: u64,
    at_us: i64,
    /// The amount in the callback, which a switch can make wrong.
    reported_cents: i64,
    fate: Fate,
}

/// The outcomes of a callback. A callback that is sent several times is counted several times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Fate {
    pub waiting: u32,
    pub delivered: u32,
    pub refused: u32,
    pub given_up: u32,
}

/// A callback to send now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Send {
    pub n: u64,
    /// The number of the message, the same each time that the callback is sent.
    pub message: u64,
    pub first_due_us: i64,
    pub at_us: i64,
    pub document: Document,
}

/// One movement of money.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    pub seq: u64,
    pub kind: TransferKind,
    pub key: Uuid,
    #[serde(flatten)]
    pub request: TransferRequest,
    pub status: Status,
    pub applied_at_us: i64,
}

/// A callback that has not ended.
#[derive(Debug)]
struct Unended {
    which: TransferRef,
    first_due_us: i64,
    /// Failed attempts. A restart sets them to zero.
    failed: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Book {
    transfers: HashMap<TransferRef, Transfer>,
    /// Transfers that succeeded, and when, in the order of their decisions.
    movements: Vec<(TransferRef, i64)>,
    undecided: BTreeSet<(i64, TransferRef)>,
    unended: BTreeMap<u64, Unended>,
    /// The unended callbacks that are not being sent, ordered by when they are due.
    waiting: BTreeSet<(i64, u64)>,
    payments: u64,
    refunds: u64,
    messages: u64,
    sends: u64,
}

// Turns calls into events. Nothing is changed here.
impl Book {
    /// Takes a payment or refund. Returns `None` if the same request was taken before.
    ///
    /// # Errors
    /// The key was used for another request, or the payment cannot be refunded by this amount.
    pub(crate) fn take(&self, key: Uuid, request: TransferRequest, due_us: i64) -> Result<Option<Event>, Problem> {
        let kind = request.kind();
        if let Some(known) = self.transfers.get(&TransferRef { kind, key }) {
            return if known.request == request { Ok(None) } else { Err(Problem::Mismatch) };
        }
        if let Cause::Refund { payment_key } = request.cause {
            self.check_refundable(payment_key, &request).map_err(Problem::NotRefundable)?;
        }
        let taken = if kind == TransferKind::Payment { self.payments } else { self.refunds };
        Ok(Some(Event::Taken { key, n: taken + 1, asked: request, due_us }))
    }

    fn check_refundable(&self, payment: Uuid, request: &TransferRequest) -> Result<(), &'static str> {
        let payment = TransferRef { kind: TransferKind::Payment, key: payment };
        let payment = self.transfers.get(&payment).ok_or("the payment does not exist")?;
        if payment.status != Status::Succeeded {
            return Err("the payment did not succeed");
        }
        if payment.request.currency != request.currency {
            return Err("the payment is in another currency");
        }
        // The difference is never negative, so the subtraction cannot overflow.
        if request.amount_cents > payment.request.amount_cents - payment.refunded_cents {
            return Err("the refunds would exceed the payment");
        }
        Ok(())
    }

    /// Decides a pending transfer.
    ///
    /// # Errors
    /// The transfer does not exist, or is decided already.
    pub(crate) fn decide(&self, which: TransferRef, verdict: Verdict, at_us: i64) -> Result<Event, Problem> {
        match self.transfers.get(&which).ok_or(Problem::Unknown)?.status {
            Status::Pending => Ok(Event::Decided { which, verdict, message: self.messages + 1, at_us }),
            Status::Succeeded | Status::Failed => Err(Problem::Decided),
        }
    }

    /// Sends the callback of a decided transfer once more.
    pub(crate) fn send_again(&self, which: TransferRef, due_us: i64) -> Result<Event, Problem> {
        let transfer = self.transfers.get(&which).ok_or(Problem::Unknown)?;
        transfer.message.as_ref().ok_or(Problem::NotDecided)?;
        Ok(Event::Again { which, send: self.sends + 1, due_us })
    }
}

// Applies events.
impl Book {
    pub(crate) fn apply(&mut self, event: &Event) -> Result<(), Illegal> {
        match event {
            Event::Taken { key, n, asked, due_us } => self.apply_taken(*key, *n, asked, *due_us),
            Event::Decided { which, verdict, message, at_us } => self.apply_decided(*which, verdict, *message, *at_us),
            Event::Again { which, send, due_us } if *send == self.sends + 1 => self.add_callback(*which, *due_us),
            Event::Again { .. } => Err(Illegal("a callback's number is out of order")),
            Event::Ended { send, outcome } => self.apply_ended(*send, *outcome),
        }
    }

    fn apply_taken(&mut self, key: Uuid, n: u64, request: &TransferRequest, due_us: i64) -> Result<(), Illegal> {
        // The same checks as when the call came.
        match self.take(key, request.clone(), due_us) {
            Ok(Some(Event::Taken { n: next, .. })) if next == n => {}
            _ => return Err(Illegal("this transfer cannot have been taken")),
        }
        match request.cause {
            Cause::Payment { .. } => self.payments = n,
            Cause::Refund { payment_key } => {
                self.refunds = n;
                self.add_refunded(payment_key, request.amount_cents);
            }
        }
        let which = TransferRef { kind: request.kind(), key };
        let (request, status) = (request.clone(), Status::Pending);
        let taken = Transfer { n, request, status, due_us, refunded_cents: 0, message: None, reason: None };
        self.transfers.insert(which, taken);
        self.undecided.insert((due_us, which));
        Ok(())
    }

    fn add_refunded(&mut self, payment: Uuid, cents: i64) {
        if let Some(payment) = self.transfers.get_mut(&TransferRef { kind: TransferKind::Payment, key: payment }) {
            payment.refunded_cents += cents;
        }
    }

    fn apply_decided(
        &mut self,
        which: TransferRef,
        verdict: &Verdict,
        message: u64,
        at_us: i64,
    ) -> Result<(), Illegal> {
        let transfer = self.transfers.get_mut(&which).ok_or(Illegal("a transfer was decided that was never taken"))?;
        if transfer.status != Status::Pending || message != self.messages + 1 {
            return Err(Illegal("a transfer was decided twice or out of order"));
        }
        transfer.status = if verdict.succeeded { Status::Succeeded } else { Status::Failed };
        transfer.reason.clone_from(&verdict.reason);
        transfer.message =
            Some(Message { n: message, at_us, reported_cents: verdict.told_cents, fate: Fate::default() });
        self.undecided.remove(&(transfer.due_us, which));
        self.messages = message;
        match transfer.request.cause {
            _ if verdict.succeeded => self.movements.push((which, at_us)),
            Cause::Refund { payment_key } => {
                let back = -transfer.request.amount_cents;
                self.add_refunded(payment_key, back);
            }
            Cause::Payment { .. } => {}
        }
        verdict.due_us.iter().try_for_each(|due_us| self.add_callback(which, *due_us))
    }

    fn add_callback(&mut self, which: TransferRef, due_us: i64) -> Result<(), Illegal> {
        self.fate_of(which).ok_or(Illegal("a callback was sent for a transfer that is not decided"))?.waiting += 1;
        self.sends += 1;
        self.unended.insert(self.sends, Unended { which, first_due_us: due_us, failed: 0 });
        self.waiting.insert((due_us, self.sends));
        Ok(())
    }

    fn apply_ended(&mut self, send: u64, outcome: Outcome) -> Result<(), Illegal> {
        let Unended { which, first_due_us, .. } =
            self.unended.remove(&send).ok_or(Illegal("a callback ended that was not waiting"))?;
        self.waiting.remove(&(first_due_us, send));
        if let Some(fate) = self.fate_of(which) {
            fate.waiting -= 1;
            *match outcome {
                Outcome::Delivered => &mut fate.delivered,
                Outcome::Refused => &mut fate.refused,
                Outcome::GivenUp => &mut fate.given_up,
            } += 1;
        }
        Ok(())
    }

    fn fate_of(&mut self, which: TransferRef) -> Option<&mut Fate> {
        Some(&mut self.transfers.get_mut(&which)?.message.as_mut()?.fate)
    }

    /// Hands out the next callback that is due. If none is due, the error is the time at which one will be, or `None`. A
    /// callback that was handed out, and neither ended nor was postponed, is handed out again after a restart.
    pub(crate) fn next_send(&mut self, now_us: i64) -> Result<Send, Option<i64>> {
        let &(due_us, n) = self.waiting.first().ok_or(None)?;
        if due_us > now_us {
            return Err(Some(due_us));
        }
        self.waiting.pop_first();
        let &Unended { which, first_due_us, .. } = self.unended.get(&n).ok_or(None)?;
        let transfer = self.transfers.get(&which).ok_or(None)?;
        let message = transfer.message.as_ref().ok_or(None)?;
        let request = TransferRequest { amount_cents: message.reported_cents, ..transfer.request.clone() };
        let document = Document {
            reason: transfer.reason.clone(),
            ..Document::new(which.key, transfer.n, transfer.status, request)
        };
        Ok(Send { n, message: message.n, first_due_us, at_us: message.at_us, document })
    }

    /// Makes a callback that was not delivered due again. `due_us` calculates the time from the number of failed attempts.
    pub(crate) fn postpone(&mut self, send: u64, due_us: impl Fn(u32) -> i64) {
        if let Some(unended) = self.unended.get_mut(&send) {
            unended.failed = unended.failed.saturating_add(1);
            self.waiting.insert((due_us(unended.failed), send));
        }
    }
}

// Reads.
impl Book {
    pub(crate) fn document(&self, which: TransferRef) -> Option<Document> {
        let transfer = self.transfers.get(&which)?;
        let document = Document::new(which.key, transfer.n, transfer.status, transfer.request.clone());
        Some(Document { reason: transfer.reason.clone(), ..document })
    }

    /// The number of a transfer's callback, and its outcomes. `None` before the decision.
    pub(crate) fn callback(&self, which: TransferRef) -> Option<(u64, Fate)> {
        let message = self.transfers.get(&which)?.message.as_ref()?;
        Some((message.n, message.fate))
    }

    /// The pending transfer that is due first, and when it is due.
    pub(crate) fn next_undecided(&self) -> Option<(i64, TransferRef)> {
        self.undecided.first().copied()
    }

    /// At most `limit` movements of money after the entry `after`, in order, and whether there are more.
    pub(crate) fn ledger(&self, after: u64, limit: usize) -> (Vec<Entry>, bool) {
        let from = usize::try_from(after).unwrap_or(usize::MAX).min(self.movements.len());
        let rows = self.movements[from..].iter().zip(after + 1..).take(limit);
        let entry = |(&(which, applied_at_us), seq)| {
            let Transfer { request, status, .. } = self.transfers.get(&which)?;
            Some(Entry {
                seq,
                kind: which.kind,
                key: which.key,
                request: request.clone(),
                status: *status,
                applied_at_us,
            })
        };
        (rows.filter_map(entry).collect(), self.movements.len() - from > limit)
    }
}
