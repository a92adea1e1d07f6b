//! Kept connections of one thread, each with one request in flight at a time, as a browser's are.
//!
//! Nothing here waits: a request is written as far as the system takes it, and [`Connections::answers`] continues whatever
//! has become possible. No request costs a task, a timer or an allocation, because a crowd shares its processors with the
//! service that it measures. `seckill-client` opens no connection before the start, and sends no forged tokens.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Registry, Token};
use rustix::net::sockopt::set_socket_linger;

use super::answer::{Answer, Incoming};

/// The most connections that are looked at before the caller has its turn.
const EVENTS_MAX: usize = 64;
/// Bytes that one read takes at most.
const READ_BYTES: usize = 16 * 1024;
/// The most connections that are opened at once before the first request: fewer than a service's backlog.
const OPENING_MAX: usize = 64;
/// How often requests without an answer are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Why a request ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    Connect,
    TimeOut,
    Lost,
}

impl NoAnswer {
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "no connection",
            Self::TimeOut => "time-out",
            Self::Lost => "connection lost",
        }
    }
}

/// The bounds of connections.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Connections that are opened before the first request.
    pub opened: usize,
    /// The most connections. More than `opened` are opened as they are needed.
    pub most: usize,
    /// From the send of a request to the end of its answer, with the time to connect.
    pub time_out: Duration,
}

/// Connections to one address. `T` is the caller's mark of a request, which comes back with the answer.
pub struct Connections<T> {
    to: SocketAddr,
    time_out: Duration,
    poll: Poll,
    events: Events,
    places: Places<T>,
    /// The last bytes read.
    read: Vec<u8>,
    next_look: Instant,
}

/// The connections by their tokens. A place stays when its connection is closed, and gets another when it is used again.
struct Places<T> {
    all: Vec<Place<T>>,
    /// Places without a request in flight, the longest idle first, so that no connection is idle until the service closes it.
    free: VecDeque<usize>,
    most: usize,
    room_since: Instant,
}

struct Place<T> {
    stream: Option<TcpStream>,
    is_connecting: bool,
    /// The unwritten rest of the request.
    unsent: Vec<u8>,
    /// The request in flight, and when it must have its answer.
    request: Option<(T, Instant)>,
    incoming: Incoming,
}

impl<T> Connections<T> {
    /// Opens connections, within the time-out of a request. Failures are ignored: the first request meets them again.
    ///
    /// # Errors
    /// The system gives no queue of events.
    pub fn open(to: SocketAddr, bounds: Bounds) -> io::Result<Self> {
        let now = Instant::now();
        let opened = bounds.opened.min(bounds.most);
        let all = (0..opened).map(|_| Place::closed()).collect();
        let places = Places { all, free: (0..opened).collect(), most: bounds.most, room_since: now };
        let mut connections = Self {
            to,
            time_out: bounds.time_out,
            poll: Poll::new()?,
            events: Events::with_capacity(EVENTS_MAX),
            places,
            read: vec![0; READ_BYTES],
            next_look: now,
        };
        connections.open_all(now + bounds.time_out)?;
        Ok(connections)
    }

    fn open_all(&mut self, deadline: Instant) -> io::Result<()> {
        for begin in (0..self.places.all.len()).step_by(OPENING_MAX) {
            let batch = begin..self.places.all.len().min(begin + OPENING_MAX);
            for index in batch.clone() {
                let place = &mut self.places.all[index];
                if place.connect(self.to, self.poll.registry(), Token(index)).is_err() {
                    place.close();
                }
            }
            while self.places.all[batch.clone()].iter().any(|place| place.is_connecting) {
                let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                    self.places.all[batch].iter_mut().filter(|place| place.is_connecting).for_each(Place::close);
                    return Ok(());
                };
                self.answers(left.min(LOOK_EVERY), |_, _| {})?;
            }
        }
        Ok(())
    }

    /// Whether a request can be sent now.
    pub fn has_room(&self) -> bool {
        self.places.has_room()
    }

    /// Since when there has been room; before, all connections waited for answers.
    pub fn room_since(&self) -> Instant {
        self.places.room_since
    }

    /// Number of requests without an answer so far.
    pub fn in_flight(&self) -> usize {
        self.places.all.len() - self.places.free.len()
    }

    /// Sends a request, over a new connection if the service has closed the next free one.
    ///
    /// # Errors
    /// There is no room, or the system gives no connection: the request was not sent.
    pub fn send(&mut self, mark: T, request: &[u8], now: Instant) -> Result<(), NoAnswer> {
        let index = self.places.take().ok_or(NoAnswer::Connect)?;
        let place = &mut self.places.all[index];
        if !place.write(request) {
            place.unsent.extend_from_slice(request);
            if place.connect(self.to, self.poll.registry(), Token(index)).is_err() {
                place.close();
                self.places.release(index);
                return Err(NoAnswer::Connect);
            }
        }
        place.request = Some((mark, now + self.time_out));
        Ok(())
    }

    /// Gives the answers that have come, and the requests that will have none. Waits at most `within` for the first.
    ///
    /// # Errors
    /// The system cannot say which connections have something to read.
    pub fn answers(
        &mut self,
        within: Duration,
        mut give: impl FnMut(T, Result<Answer<'_>, NoAnswer>),
    ) -> io::Result<()> {
        match self.poll.poll(&mut self.events, Some(within)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            Ok(()) | Err(_) => {}
        }
        for event in &self.events {
            let Token(index) = event.token();
            let Some(place) = self.places.all.get_mut(index) else { continue };
            let Some(ended) = place.go_on(event, &mut self.read) else { continue };
            let request = place.request.take();
            let answer = ended.and_then(|_| place.incoming.answer().ok_or(NoAnswer::Lost));
            let is_in_flight = request.is_some();
            if let Some((mark, _)) = request {
                give(mark, answer);
            }
            let keeps_open = ended.is_ok_and(|took_all| took_all && place.incoming.keeps_open());
            if keeps_open && place.unsent.is_empty() {
                place.incoming.clear();
            } else {
                place.close();
            }
            if is_in_flight {
                self.places.release(index);
            }
        }
        self.end_overdue(give);
        Ok(())
    }

    fn end_overdue(&mut self, mut give: impl FnMut(T, Result<Answer<'_>, NoAnswer>)) {
        let now = Instant::now();
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK_EVERY;
        for index in 0..self.places.all.len() {
            let place = &mut self.places.all[index];
            if let Some((mark, _)) = place.request.take_if(|(_, deadline)| *deadline <= now) {
                place.close();
                self.places.release(index);
                give(mark, Err(NoAnswer::TimeOut));
            }
        }
    }
}

impl<T> Places<T> {
    fn has_room(&self) -> bool {
        !self.free.is_empty() || self.all.len() < self.most
    }

    /// The place that was free for longest, or another one.
    fn take(&mut self) -> Option<usize> {
        if let Some(index) = self.free.pop_front() {
            return Some(index);
        }
        (self.all.len() < self.most).then(|| {
            self.all.push(Place::closed());
            self.all.len() - 1
        })
    }

    fn release(&mut self, index: usize) {
        if !self.has_room() {
            self.room_since = Instant::now();
        }
        self.free.push_back(index);
    }
}

impl<T> Place<T> {
    fn closed() -> Self {
        Self { stream: None, is_connecting: false, unsent: Vec::new(), request: None, incoming: Incoming::default() }
    }

    fn close(&mut self) {
        self.stream = None;
        self.is_connecting = false;
        self.unsent.clear();
        self.incoming.clear();
    }

    fn connect(&mut self, to: SocketAddr, registry: &Registry, token: Token) -> io::Result<()> {
        let mut stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        // Closed with a reset, which frees the port at once: else the ports of one crowd would lack the next.
        set_socket_linger(&stream, Some(Duration::ZERO))?;
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        self.stream = Some(stream);
        self.is_connecting = true;
        Ok(())
    }

    /// Writes a request, if the connection stands. `go_on` writes the rest that the system does not take at once.
    fn write(&mut self, request: &[u8]) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        match write_some(stream, request) {
            Ok(written) => self.unsent.extend_from_slice(&request[written..]),
            // The service has closed it.
            Err(_) => self.close(),
        }
        self.stream.is_some()
    }

    /// Connects, writes and reads, as far as possible. Returns how the request or the connection ended, if it did; with a complete
    /// answer, also whether all of the connection's bytes were read.
    fn go_on(&mut self, event: &Event, read: &mut [u8]) -> Option<Result<bool, NoAnswer>> {
        let stream = self.stream.as_mut()?;
        if self.is_connecting {
            match (stream.take_error(), stream.peer_addr()) {
                (Ok(None), Ok(_)) => self.is_connecting = false,
                (Ok(None), Err(error)) if error.kind() == ErrorKind::NotConnected => return None,
                (Ok(_) | Err(_), _) => return Some(Err(NoAnswer::Connect)),
            }
        }
        if !self.unsent.is_empty() {
            // If this fails, reading says so: an answer that came before the whole request was sent counts.
            let written = write_some(stream, &self.unsent).unwrap_or(self.unsent.len());
            self.unsent.drain(..written);
        }
        let is_ending = event.is_read_closed() || event.is_error();
        loop {
            let length = match stream.read(read) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(_) => return Some(Err(NoAnswer::Lost)),
            };
            // The service closed an idle connection, or said something that nobody asked for.
            if self.request.is_none() {
                return Some(Err(NoAnswer::Lost));
            }
            match self.incoming.add(&read[..length]) {
                // A full read may have left bytes behind, and no event will announce them.
                Ok(true) => return Some(Ok(!is_ending && length < read.len())),
                Ok(false) if length == 0 => return Some(Err(NoAnswer::Lost)),
                // A read that is not full has taken everything, and more is announced by another event (man 7 epoll).
                Ok(false) if is_ending || length == read.len() => {}
                Ok(false) => return None,
                Err(_) => return Some(Err(NoAnswer::Lost)),
            }
        }
    }
}

/// Number of bytes that the system took; 0 if it takes none now.
fn write_some(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match stream.write(bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            written => return written,
        }
    }
}

#[cfg(test)]
mod tests;
