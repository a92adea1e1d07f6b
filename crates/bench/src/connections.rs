//! Kept connections of one thread: it writes requests without waiting for the answers, and reads of each answer the status.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use rustix::net::sockopt::set_socket_linger;

/// The most connections.
const MAX: usize = 15_000;
/// The longest answer: a slider's challenge has two pictures in it.
const ANSWER_MAX: usize = 32_768;
/// The most connections that are looked at before the caller has its turn.
const EVENTS_MAX: usize = 256;

pub struct Connections {
    to: SocketAddr,
    poll: Poll,
    events: Events,
    /// By token. A closed connection's place stays empty.
    open: Vec<Option<Connection>>,
    /// The one that has been idle for longest is used first, so that none is idle until the service closes it.
    idle: VecDeque<usize>,
    /// What was read last.
    read: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    /// The request that is to be written as soon as the connection stands.
    unsent: Vec<u8>,
    /// The number of the request that waits for its answer, and what has come of that.
    waits: Option<usize>,
    answer: Vec<u8>,
}

/// What became of the request with this number.
pub struct Answer {
    pub number: usize,
    /// `None`: the connection was closed, or what it brought is no answer.
    pub status: Option<u16>,
}

impl Connections {
    /// # Errors
    /// The service cannot be connected to.
    pub fn open(to: SocketAddr, count: usize) -> anyhow::Result<Self> {
        let events = Events::with_capacity(EVENTS_MAX);
        let mut all =
            Self { to, poll: Poll::new()?, events, open: Vec::new(), idle: VecDeque::new(), read: vec![0; ANSWER_MAX] };
        for _ in 0..count {
            let stream = std::net::TcpStream::connect(to)?;
            stream.set_nonblocking(true)?;
            let place = all.add(TcpStream::from_std(stream))?;
            all.idle.push_back(place);
        }
        Ok(all)
    }

    fn add(&mut self, mut stream: TcpStream) -> anyhow::Result<usize> {
        stream.set_nodelay(true)?;
        // Closed at once, or the ports of one crowd would lack the next.
        set_socket_linger(&stream, Some(Duration::ZERO))?;
        let place = self.open.len();
        self.poll.registry().register(&mut stream, Token(place), Interest::READABLE | Interest::WRITABLE)?;
        self.open.push(Some(Connection { stream, unsent: Vec::new(), waits: None, answer: Vec::new() }));
        Ok(place)
    }

    /// Writes the request whose parts these are to an idle connection, or to a new one.
    ///
    /// # Errors
    /// There are too many connections: the request has no answer.
    pub fn send(&mut self, number: usize, parts: [&[u8]; 3]) -> anyhow::Result<()> {
        while let Some(place) = self.idle.pop_front() {
            let Some(kept) = &mut self.open[place] else { continue };
            let length = parts.iter().map(|part| part.len()).sum::<usize>();
            if kept.stream.write_vectored(&parts.map(IoSlice::new)).is_ok_and(|written| written == length) {
                kept.waits = Some(number);
                return Ok(());
            }
            // The service closed it.
            self.open[place] = None;
        }
        ensure!(self.open.len() < MAX, "{MAX} connections were opened");
        let place = self.add(TcpStream::connect(self.to)?)?;
        if let Some(new) = &mut self.open[place] {
            new.unsent = parts.concat();
            new.waits = Some(number);
        }
        Ok(())
    }

    /// Gives the answers that have come, after this time at most.
    ///
    /// # Errors
    /// The system cannot say which connections have something to read.
    pub fn answers(&mut self, within: Duration, mut give: impl FnMut(Answer)) -> anyhow::Result<()> {
        let polled = self.poll.poll(&mut self.events, Some(within));
        if polled.as_ref().is_err_and(|error| error.kind() != ErrorKind::Interrupted) {
            polled?;
        }
        for event in &self.events {
            let Token(place) = event.token();
            let Some(connection) = &mut self.open[place] else { continue };
            let read = connection.go_on(&mut self.read);
            let number = connection.waits;
            if let Ok(Some(status)) = read {
                connection.waits = None;
                self.idle.push_back(place);
                number.into_iter().for_each(|number| give(Answer { number, status: Some(status) }));
            }
            if read.is_err() || event.is_read_closed() {
                let lost = self.open[place].take().and_then(|closed| closed.waits);
                lost.into_iter().for_each(|number| give(Answer { number, status: None }));
            }
        }
        Ok(())
    }
}

impl Connection {
    /// Writes what is unsent, and reads: the status, once the answer is complete.
    fn go_on(&mut self, bytes: &mut [u8]) -> anyhow::Result<Option<u16>> {
        if !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(written) => ensure!(written == self.unsent.len(), "a part of the request was written"),
                Err(error) if is_early(&error) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            self.unsent.clear();
        }
        match self.stream.read(bytes) {
            Ok(0) => anyhow::bail!("the connection was closed"),
            Ok(length) => {
                ensure!(self.waits.is_some(), "an answer without a request");
                if self.answer.is_empty()
                    && let Some(status) = complete(&bytes[..length])?
                {
                    return Ok(Some(status));
                }
                self.answer.extend_from_slice(&bytes[..length]);
            }
            Err(error) if is_early(&error) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let status = complete(&self.answer)?;
        if status.is_some() {
            self.answer.clear();
        }
        Ok(status)
    }
}

fn is_early(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected | ErrorKind::Interrupted)
}

/// The status of an answer; `None` while it is not complete.
fn complete(answer: &[u8]) -> anyhow::Result<Option<u16>> {
    let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&answer[..end])?;
    let status = head.get(9..12).context("no status")?.parse()?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).context("no length")?;
    let length = end + 4 + length.parse::<usize>()?;
    ensure!(length <= ANSWER_MAX, "an answer of {length} bytes");
    Ok((answer.len() >= length).then_some(status))
}
