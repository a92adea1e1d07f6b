//! A client's connection with the deadlines that actix-web does not set. actix-web times the first head of a connection, and the pause
//! between two requests. Timed here are later heads on a kept-alive connection, the rest of a body after its answer, and the time a client
//! takes to read a piece of an answer. `http::extract` times bodies. This file also limits how far a client may send ahead: for requests
//! without room, actix-http (3.20) loops without a pause.
//!
//! Pauses are timed here too. actix-http (3.20) counts its deadlines by a clock that ticks twice a second, and less often on a busy
//! machine. It never notices a deadline that has passed when it is set, and such a connection would stay for ever.

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

#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// From a head's first byte to its end.
    pub(crate) head: Duration,
    /// To read a piece of an answer (`slices`), from its first byte that did not fit into the kernel's buffers.
    pub(crate) answer: Duration,
    /// To send anything, from the connection's start or from the last answer. Longer than actix-web's own deadline.
    pub(crate) idle: Duration,
    pub(crate) body: usize,
    /// The limit in bytes after a request's head, before the next head is read: the body, and requests sent ahead.
    pub(crate) ahead: usize,
}

/// After this many bytes, the server looks for a head among them before it reads more. Otherwise it would read a whole picture that comes
/// together with its head, before it knows the request.
const READ_AT_ONCE: usize = 32 * 1024;

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Idle since then. This includes a silent stream of events.
    Idle(Instant),
    /// Since then, the client has been sending a head, or the rest of a body after its answer.
    Head(Instant),
    Request,
}

pub(crate) struct ConnectionState {
    phase: Cell<Phase>,
    unanswered: Cell<usize>,
    /// Bytes read after the last request's head.
    ahead: Cell<usize>,
    /// `ahead` when reading last paused.
    paused_at: Cell<usize>,
    /// The last request's body exceeds `Bounds::body`. Its handler allows more and reads it, or the connection ends after the answer.
    has_long_body: Cell<bool>,
    bounds: Bounds,
}

/// Dropped when its request is answered.
pub(crate) struct Unanswered(Rc<ConnectionState>);

impl Unanswered {
    /// `None` for a request from a connection of another kind.
    pub(crate) fn new(request: &Request) -> Option<Self> {
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

pub(crate) struct TimedStream {
    stream: TcpStream,
    state: Rc<ConnectionState>,
    /// Since when a piece of an answer has waited for the client.
    blocked_since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    pub(crate) fn new(stream: TcpStream, bounds: Bounds) -> Self {
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

    pub(crate) fn state(&self) -> Rc<ConnectionState> {
        Rc::clone(&self.state)
    }

    /// Fails if a deadline has passed. Otherwise wakes the connection's task at the deadline.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let bounds = &self.state.bounds;
        let (deadline, what) = match (self.blocked_since, self.state.phase.get()) {
            // The next head is not read before this answer is written.
            (Some(since), _) => (since + bounds.answer, "answer"),
            (None, Phase::Head(since)) => (since + bounds.head, "head"),
            (None, Phase::Idle(since)) => (since + bounds.idle, "idle"),
            (None, Phase::Request) => return Ok(()),
        };
        if deadline <= Instant::now() {
            return Err(cut(what, io::ErrorKind::TimedOut));
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        // An earlier timer stays: one needless wake-up costs less than a move on every request.
        if timer.is_elapsed() || deadline < timer.deadline() {
            timer.as_mut().reset(deadline);
        }
        if timer.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Ok(())
    }

    /// Whether to look at the read bytes before reading more. They may contain a head, which says how much may follow.
    fn pauses(&self) -> bool {
        let ahead = self.state.ahead.get();
        let may_hide_a_head = ahead >= READ_AT_ONCE && !self.state.has_long_body.get();
        may_hide_a_head && self.state.paused_at.replace(ahead) != ahead
    }

    /// Counts read bytes. Fails if the client has sent too far ahead.
    fn count(&self, bytes: usize) -> io::Result<()> {
        let ahead = self.state.ahead.get() + bytes;
        self.state.ahead.set(ahead);
        if ahead > self.state.bounds.ahead && !self.state.has_long_body.get() {
            return Err(cut("ahead", io::ErrorKind::InvalidData));
        }
        Ok(())
    }
}

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

    /// The server calls this after it has written everything.
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
