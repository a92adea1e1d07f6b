//! A client's connection with the deadlines that actix-web does not set: it times the first head of a connection, and the pause
//! between two requests. Here are timed the heads that follow on a kept-alive connection, what is still sent after the answer, and
//! how long the client takes to read an answer. Bodies are timed where they are read, in `http::extract`.
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
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

/// What actix-web sends to a client that asks before it sends its body. It answers nothing yet.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// How long a client may take.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// To send a head, from its first byte.
    pub head: Duration,
    /// To read an answer, from the first byte that did not fit into the kernel's buffers. A longer answer is written in parts, and
    /// each may take so long.
    pub answer: Duration,
    /// To say anything, from the connection's beginning or from the last answer; longer than actix-web's own deadline.
    pub idle: Duration,
}

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

/// The connection's phase, by which the server says when a head is complete.
#[derive(Clone)]
pub struct PhaseHandle(Rc<Cell<Phase>>);

/// Marks the request's head as complete.
pub fn head_is_complete(request: &Request) {
    if let Some(PhaseHandle(phase)) = request.conn_data() {
        phase.set(Phase::Request);
    }
}

/// The connection.
pub struct TimedStream {
    stream: TcpStream,
    phase: Rc<Cell<Phase>>,
    /// Since when a part of an answer has waited for the client.
    blocked_since: Option<Instant>,
    deadlines: Deadlines,
    timer: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    pub fn new(stream: TcpStream, deadlines: Deadlines) -> Self {
        Self {
            stream,
            phase: Rc::new(Cell::new(Phase::Idle(Instant::now()))),
            blocked_since: None,
            deadlines,
            timer: None,
        }
    }

    pub fn phase(&self) -> PhaseHandle {
        PhaseHandle(Rc::clone(&self.phase))
    }

    /// Fails if a deadline has passed; otherwise the connection's task is woken at the deadline.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let (deadline, what) = match (self.blocked_since, self.phase.get()) {
            // The next head is not read on before this answer is written.
            (Some(since), _) => (since + self.deadlines.answer, "answer"),
            (None, Phase::Head(since)) => (since + self.deadlines.head, "head"),
            (None, Phase::Idle(since)) => (since + self.deadlines.idle, "idle"),
            (None, Phase::Request) => return Ok(()),
        };
        if deadline <= Instant::now() {
            metrics::counter!("seckill_slow_clients_total", "what" => what).increment(1);
            return Err(io::ErrorKind::TimedOut.into());
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
}

impl AsyncRead for TimedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        if polled.is_pending() {
            this.check(cx)?;
        } else if buf.filled().len() > before && matches!(this.phase.get(), Phase::Idle(_)) {
            this.phase.set(Phase::Head(Instant::now()));
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
        } else if buf != CONTINUE {
            this.phase.set(Phase::Idle(Instant::now()));
        }
        polled
    }

    /// The server calls this when it has written all that there was.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.blocked_since.take().is_some() && matches!(this.phase.get(), Phase::Head(_)) {
            this.phase.set(Phase::Head(Instant::now()));
        }
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
