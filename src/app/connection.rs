//! A client's connection with the deadlines that actix-web does not set: it times the first head of a connection, and the pause
//! between two requests. Here are timed the heads that follow on a kept-alive connection, what is still sent after the answer, and
//! how long the client takes to read a piece of an answer. Bodies are timed where they are read, in `http::extract`. And here is bounded how
//! far a client may send ahead: actix-http (3.20) looks again and again, without a pause, at requests for which it has no room.
//!
//! Pauses are timed once more. actix-http (3.20) counts its deadlines from a clock that ticks twice a second, and later on a busy
//! machine; a deadline that has passed when it is set is never noticed, and the connection would stay for ever.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_http::Request;
use actix_http::header::CONTENT_LENGTH;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

/// How long a client may take, and how much it may send.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// To send a head, from its first byte.
    pub head: Duration,
    /// To read a piece of an answer (`slices`), from its first byte that did not fit into the kernel's buffers.
    pub answer: Duration,
    /// To say anything, from the connection's beginning or from the last answer; longer than actix-web's own deadline.
    pub idle: Duration,
    /// The longest body, in bytes.
    pub body: usize,
    /// What may follow the head of a request before the next is looked at, in bytes: its body, and requests sent ahead.
    pub ahead: usize,
}

/// After so many bytes, the server looks for a head among them before it reads on: it would read a picture that comes in one
/// piece with its head before it knows that it is one.
const READ_AT_ONCE: usize = 32 * 1024;

/// What a connection is used for.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Nothing is under way since then, or a stream of events that is silent.
    Idle(Instant),
    /// The client has been sending a head since then, or the rest of a body after its answer.
    Head(Instant),
    /// A request has arrived, and is not answered yet.
    Request,
}

/// What the server tells the connection.
pub struct ConnectionState {
    phase: Cell<Phase>,
    /// Requests that are being answered.
    unanswered: Cell<usize>,
    /// Bytes read since the head of the last request.
    ahead: Cell<usize>,
    /// `ahead` when reading has paused last.
    paused_at: Cell<usize>,
    /// The last request's body is longer than `Bounds::body`: it is read by who allows more, or the connection ends with its answer.
    has_long_body: Cell<bool>,
    bounds: Bounds,
}

/// A request that is being answered, until this is dropped.
pub struct Unanswered(Rc<ConnectionState>);

impl Unanswered {
    /// `None` for a request that came by no connection of ours.
    pub fn new(request: &Request) -> Option<Self> {
        let state: &Rc<ConnectionState> = request.conn_data()?;
        let length = request.head().headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        state.phase.set(Phase::Request);
        state.unanswered.update(|requests| requests + 1);
        state.ahead.set(0);
        state.has_long_body.set(length.is_some_and(|length: usize| length > state.bounds.body));
        Some(Self(Rc::clone(state)))
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.unanswered.update(|requests| requests - 1);
    }
}

/// The connection.
pub struct TimedStream {
    stream: TcpStream,
    state: Rc<ConnectionState>,
    /// Since when a piece of an answer has waited for the client.
    blocked_since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    pub fn new(stream: TcpStream, bounds: Bounds) -> Self {
        let state = ConnectionState {
            phase: Cell::new(Phase::Idle(Instant::now())),
            unanswered: Cell::new(0),
            ahead: Cell::new(0),
            paused_at: Cell::new(0),
            has_long_body: Cell::new(false),
            bounds,
        };
        Self { stream, state: Rc::new(state), blocked_since: None, timer: None }
    }

    pub fn state(&self) -> Rc<ConnectionState> {
        Rc::clone(&self.state)
    }

    /// Fails if a deadline has passed; otherwise the connection's task is woken at the deadline.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let bounds = &self.state.bounds;
        let (deadline, what) = match (self.blocked_since, self.state.phase.get()) {
            // The next head is not read on before this answer is written.
            (Some(since), _) => (since + bounds.answer, "answer"),
            (None, Phase::Head(since)) => (since + bounds.head, "head"),
            (None, Phase::Idle(since)) => (since + bounds.idle, "idle"),
            (None, Phase::Request) => return Ok(()),
        };
        if deadline <= Instant::now() {
            return Err(cut(what, io::ErrorKind::TimedOut));
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        // A timer that is due earlier is left alone: it wakes the task once for nothing, which costs less than to move it with
        // every request.
        if timer.is_elapsed() || deadline < timer.deadline() {
            timer.as_mut().reset(deadline);
        }
        if timer.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Ok(())
    }

    /// Whether what was read must be looked at before more is read: a head that is among it says how much may follow.
    fn pauses(&self) -> bool {
        let ahead = self.state.ahead.get();
        let may_hide_a_head = ahead >= READ_AT_ONCE && !self.state.has_long_body.get();
        may_hide_a_head && self.state.paused_at.replace(ahead) != ahead
    }

    /// Counts what was read. Fails if it is too far ahead of what can be answered.
    fn count(&self, bytes: usize) -> io::Result<()> {
        let ahead = self.state.ahead.get() + bytes;
        self.state.ahead.set(ahead);
        if ahead > self.state.bounds.ahead && !self.state.has_long_body.get() {
            return Err(cut("ahead", io::ErrorKind::InvalidData));
        }
        Ok(())
    }
}

/// The end of a connection for which its client is to blame.
fn cut(what: &'static str, kind: io::ErrorKind) -> io::Error {
    metrics::counter!("seckill_clients_cut_total", "what" => what).increment(1);
    kind.into()
}

impl AsyncRead for TimedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.pauses() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        if polled.is_pending() {
            this.check(cx)?;
        } else if buf.filled().len() > before {
            if matches!(this.state.phase.get(), Phase::Idle(_)) {
                this.state.phase.set(Phase::Head(Instant::now()));
            }
            this.count(buf.filled().len() - before)?;
        }
        polled
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(cx, buf);
        if polled.is_pending() {
            this.blocked_since.get_or_insert_with(Instant::now);
            this.check(cx)?;
        } else if this.state.unanswered.get() == 0 {
            this.state.phase.set(Phase::Idle(Instant::now()));
        }
        polled
    }

    /// The server calls this when it has written all that there was.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.blocked_since.take().is_some() && matches!(this.state.phase.get(), Phase::Head(_)) {
            this.state.phase.set(Phase::Head(Instant::now()));
        }
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
