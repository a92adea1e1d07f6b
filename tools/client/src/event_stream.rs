//! A parser for server-sent events as they arrive (WHATWG HTML, section 9.2). Pure.

use std::time::Duration;

/// The longest unfinished event that is kept. The service's events have 300 bytes.
const UNREAD_MAX_BYTES: usize = 64 * 1024;
/// The longest pause before a reconnection that a server may ask for.
const RETRY_MAX_MS: u64 = 60_000;

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Empty unless the server names the event.
    pub kind: String,
    pub data: String,
}

/// Collects the bytes of a stream, and returns its events.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    unread: Vec<u8>,
    /// The `id` of the last event that had one, for reconnecting.
    pub last_event_id: Option<String>,
    /// How long to wait before reconnecting.
    pub retry: Option<Duration>,
}

impl Parser {
    /// Takes bytes in. Returns `false` if an event is too long.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> bool {
        // Lines may end with CR LF. The data are JSON without line breaks.
        self.unread.extend(bytes.iter().filter(|byte| **byte != b'\r'));
        self.unread.len() <= UNREAD_MAX_BYTES
    }

    /// The next complete event with data. Comments and unknown fields are ignored.
    pub(crate) fn take_event(&mut self) -> Option<Event> {
        while let Some(end) = self.unread.windows(2).position(|bytes| bytes == b"\n\n") {
            let lines: Vec<u8> = self.unread.drain(..end + 2).collect();
            let (mut kind, mut data) = (String::new(), Vec::new());
            for line in String::from_utf8_lossy(&lines).lines() {
                let (name, value) = line.split_once(':').unwrap_or((line, ""));
                let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
                match name {
                    "event" => kind = value,
                    "data" => data.push(value),
                    "id" if !value.contains('\0') => self.last_event_id = Some(value),
                    "retry" => {
                        let ms = value.parse::<u64>().ok();
                        self.retry = ms.map(|ms| Duration::from_millis(ms.min(RETRY_MAX_MS))).or(self.retry);
                    }
                    _ => {}
                }
            }
            if !data.is_empty() {
                return Some(Event { kind, data: data.join("\n") });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] =
        b"retry: 1500\n\nevent: status\nid: 7\ndata: {\"a\":1}\n\n:\n\nevent: status\r\nid: 8\r\ndata:b\r\ndata: c\r\n\r\n";

    fn read(pieces: impl IntoIterator<Item = Vec<u8>>) -> (Vec<Event>, Parser) {
        let (mut parser, mut events) = (Parser::default(), Vec::new());
        for piece in pieces {
            assert!(parser.push(&piece));
            while let Some(event) = parser.take_event() {
                events.push(event);
            }
        }
        (events, parser)
    }

    /// The network splits a stream at any byte.
    #[test]
    fn events_are_the_same_however_the_bytes_arrive() {
        let event = |data: &str| Event { kind: "status".into(), data: data.into() };
        for size in 1..=STREAM.len() {
            let (events, parser) = read(STREAM.chunks(size).map(<[u8]>::to_vec));
            assert_eq!(events, [event("{\"a\":1}"), event("b\nc")], "{size}");
            assert_eq!(parser.last_event_id.as_deref(), Some("8"));
            assert_eq!(parser.retry, Some(Duration::from_millis(1_500)));
        }
    }

    #[test]
    fn an_event_that_does_not_end_is_given_up() {
        let mut parser = Parser::default();
        let line = [b"data: ".as_slice(), &[b'x'; 1000], b"\n"].concat();
        let taken = (0..1000)
            .take_while(|_| {
                let taken = parser.push(&line);
                assert_eq!(parser.take_event(), None);
                taken
            })
            .count();
        assert!((50..70).contains(&taken), "{taken}");
    }
}
