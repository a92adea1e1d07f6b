//! An answer of HTTP/1.1, as far as a crowd reads it: the status, Retry-After and the body. The service always sends a
//! Content-Length, so an answer without one is malformed.

use std::time::Duration;

use httparse::{EMPTY_HEADER, Header, Status};

/// Answers of the API are far smaller; a larger one is an error of the service.
const MAX_BODY_BYTES: usize = 64 * 1024;
const MAX_HEAD_BYTES: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;
/// A buffer that has grown beyond this is given back after its answer, because thousands of connections have one each.
const KEPT_BYTES: usize = 4 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    pub status: u16,
    /// The Retry-After header, if it can be read.
    pub retry_after: Option<Duration>,
    pub body: &'a [u8],
}

/// The bytes are not an answer, or are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The bytes of an answer that have come so far.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    /// Kept once parsed, so that each further packet of the body does not parse it again.
    head: Option<Head>,
}

#[derive(Debug, Clone, Copy)]
struct Head {
    status: u16,
    retry_after: Option<Duration>,
    /// Where the body begins and ends.
    begin: usize,
    end: usize,
    keeps_open: bool,
}

impl Incoming {
    /// Adds bytes. Returns whether the answer is complete.
    pub(crate) fn add(&mut self, read: &[u8]) -> Result<bool, Malformed> {
        self.bytes.extend_from_slice(read);
        if self.head.is_none() {
            self.head = Head::parse(&self.bytes)?;
        }
        Ok(self.head.is_some_and(|head| head.end <= self.bytes.len()))
    }

    /// The answer, once it is complete.
    pub(crate) fn answer(&self) -> Option<Answer<'_>> {
        let Head { status, retry_after, begin, end, .. } = self.head?;
        Some(Answer { status, retry_after, body: self.bytes.get(begin..end)? })
    }

    /// Whether the connection can carry another request: the service keeps it open, and sent nothing beyond the answer.
    pub(crate) fn keeps_open(&self) -> bool {
        self.head.is_some_and(|head| head.keeps_open && head.end == self.bytes.len())
    }

    /// Forgets the answer, before the next request of the connection.
    pub(crate) fn clear(&mut self) {
        self.head = None;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
    }
}

impl Head {
    /// The head at the beginning of these bytes; `None` while it is incomplete.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let Status::Complete(begin) = response.parse(bytes).map_err(|_| Malformed)? else {
            return if bytes.len() > MAX_HEAD_BYTES { Err(Malformed) } else { Ok(None) };
        };
        let value = |name: &str| {
            let header = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            header.and_then(|Header { value, .. }| std::str::from_utf8(value).ok()).map(str::trim)
        };
        let length: usize = value("content-length").and_then(|length| length.parse().ok()).ok_or(Malformed)?;
        if length > MAX_BODY_BYTES {
            return Err(Malformed);
        }
        let closes = value("connection").is_some_and(|option| option.eq_ignore_ascii_case("close"));
        Ok(Some(Self {
            status: response.code.ok_or(Malformed)?,
            retry_after: value("retry-after").and_then(|after| seckill_webhook::retry_after(after, value("date"))),
            begin,
            end: begin + length,
            keeps_open: response.version == Some(1) && !closes,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status, seconds to wait, body, and whether the connection is kept.
    type Seen = (u16, Option<u64>, String, bool);

    /// Reads an answer that comes in pieces of this size.
    fn read(bytes: &[u8], piece: usize) -> Result<Option<Seen>, Malformed> {
        let mut incoming = Incoming::default();
        for piece in bytes.chunks(piece) {
            if incoming.add(piece)? {
                let answer = incoming.answer().unwrap();
                let body = String::from_utf8_lossy(answer.body).into_owned();
                let retry_after_s = answer.retry_after.map(|pause| pause.as_secs());
                return Ok(Some((answer.status, retry_after_s, body, incoming.keeps_open())));
            }
        }
        Ok(None)
    }

    /// Wherever the packets end, the same answer is read.
    #[test]
    fn answers_are_the_same_in_pieces_of_any_size() {
        let refused = "HTTP/1.1 503 Busy\r\nretry-after: 2\r\nContent-Length: 4\r\n\r\nbusy";
        let closing = "HTTP/1.1 409 Conflict\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
        let old = "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n";
        for (bytes, status, retry_after_s, body, keeps_open) in
            [(refused, 503, Some(2), "busy", true), (closing, 409, None, "{}", false), (old, 200, None, "", false)]
        {
            for piece in [1, 2, 7, bytes.len()] {
                let expected = Ok(Some((status, retry_after_s, body.to_owned(), keeps_open)));
                assert_eq!(read(bytes.as_bytes(), piece), expected, "{bytes:?} in pieces of {piece}");
            }
        }
        // Bytes behind an answer belong to no request.
        let found = read(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc", 100);
        assert_eq!(found, Ok(Some((200, None, "a".to_owned(), false))));
    }

    /// Bytes that are no answer, or more than any answer of the API, are refused and do not fill the memory.
    #[test]
    fn malformed_and_cut_off_answers_are_none() {
        let head = |line: &str| format!("HTTP/1.1 200 OK\r\n{line}\r\n\r\n");
        for bytes in [
            "SSH-2.0-OpenSSH\r\n".to_owned(),
            head("Content-Length: 65537"),
            head("Content-Length: many"),
            head("A: b"),
            head(&format!("A: {}", "b".repeat(MAX_HEAD_BYTES))).replace("\r\n\r\n", ""),
        ] {
            assert_eq!(read(bytes.as_bytes(), 1024), Err(Malformed), "{:?}", &bytes[..bytes.len().min(80)]);
        }
        for bytes in ["HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"] {
            assert_eq!(read(bytes.as_bytes(), 9), Ok(None), "{bytes:?}");
        }
    }
}
