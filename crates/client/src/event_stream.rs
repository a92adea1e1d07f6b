//! A parser for server-sent events as they arrive (WHATWG HTML, section 9.2). Pure.

use std::time::Duration;

/// The longest unfinished event that is kept. The service's events have 300 bytes.
const UNREAD_MAX_BYTES: usize = 64 * 1024;
/// The longest pause before a reconnection that a server may ask for.
const RETRY_MAX_MS: u64 = 60_000;

/// One event.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// Empty unless the server names the event.
    pub kind: String,
    pub data: String,
}

/// An event, or a line, that is too long.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Collects the bytes of a stream, and returns its events.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    unread: Vec<u8>,
    event: Event,
    has_data: bool,
    /// The `id` of the last event that had one, for reconnecting.
    pub last_event_id: Option<String>,
    /// The `id` of the unfinished event.
    id: Option<String>,
    /// How long to wait before reconnecting.
    pub retry: Option<Duration>,
}

impl Parser {
    /// Takes bytes in. Fails if an event is too long.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.unread.len() + self.event.data.len() + bytes.len() > UNREAD_MAX_BYTES {
            return Err(TooLong);
        }
        self.unread.extend_from_slice(bytes);
        Ok(())
    }

    /// The next complete event.
    pub(crate) fn take_event(&mut self) -> Option<Event> {
        while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if !line.is_empty() {
                self.take_field(line);
            } else if let Some(event) = self.finish() {
                return Some(event);
            }
        }
        None
    }

    fn take_field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => value.clone_into(&mut self.event.kind),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            "retry" => {
                if let Ok(ms) = value.parse::<u64>() {
                    self.retry = Some(Duration::from_millis(ms.min(RETRY_MAX_MS)));
                }
            }
            // A comment has an empty name. Unknown fields are ignored.
            _ => {}
        }
    }

    /// Ends the event at an empty line. An event without data is dropped.
    fn finish(&mut self) -> Option<Event> {
        let event = std::mem::take(&mut self.event);
        if let Some(id) = self.id.take() {
            self.last_event_id = Some(id);
        }
        std::mem::take(&mut self.has_data).then_some(event)
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
            parser.push(&piece).unwrap();
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
                let taken = parser.push(&line).is_ok();
                assert_eq!(parser.take_event(), None);
                taken
            })
            .count();
        assert!((50..70).contains(&taken), "{taken}");
    }
}
