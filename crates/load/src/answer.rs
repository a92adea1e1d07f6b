//! An answer of HTTP/1.1, as far as a crowd reads it: the status, Retry-After and the body.

use std::ops::Range;
use std::time::Duration;

use httparse::{EMPTY_HEADER, Header, Status};

/// Answers of the API are far smaller; a larger one is an error of the service.
const MAX_BODY_BYTES: usize = 64 * 1024;
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// The most bytes of an unfinished answer. Chunks make a body longer than its content.
const MAX_BYTES: usize = MAX_HEAD_BYTES + 2 * MAX_BODY_BYTES;
const MAX_HEADERS: usize = 64;
/// A buffer that has grown beyond this is given back after its answer, because thousands of connections have one each.
const KEPT_BYTES: usize = 4 * 1024;

/// An answer that is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    pub status: u16,
    /// The Retry-After header, if it is a number of seconds.
    pub retry_after: Option<Duration>,
    pub body: &'a [u8],
}

/// The bytes are not an answer, or are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The bytes of an answer that have come so far.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    /// Kept once parsed, so that each further packet of the body does not parse it again.
    head: Option<Head>,
    /// The body of an answer in chunks, without their sizes.
    decoded: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Head {
    status: u16,
    retry_after: Option<Duration>,
    /// Where the body begins.
    length: usize,
    framing: Framing,
    keeps_open: bool,
}

/// How the end of a body is found.
#[derive(Debug, Clone, Copy)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// A complete answer, found in an [`Incoming`].
#[derive(Debug)]
pub struct Found {
    head: Head,
    /// Where the body is among the bytes; `None` if it was decoded.
    body: Option<Range<usize>>,
    /// The connection can carry another request: the service keeps it open, and sent nothing beyond the answer.
    pub keeps_open: bool,
}

impl Incoming {
    /// Adds bytes, and returns the answer if it is complete. `is_end`: no more bytes will come.
    pub fn add(&mut self, read: &[u8], is_end: bool) -> Result<Option<Found>, Malformed> {
        self.bytes.extend_from_slice(read);
        if self.bytes.len() > MAX_BYTES {
            return Err(Malformed);
        }
        if self.head.is_none() {
            self.head = Head::parse(&self.bytes)?;
        }
        let Some(head) = self.head else { return Ok(None) };
        let rest = &self.bytes[head.length..];
        let body = match head.framing {
            Framing::Length(length) if rest.len() < length => return Ok(None),
            Framing::Length(length) => Some(head.length..head.length + length),
            Framing::UntilClose if rest.len() > MAX_BODY_BYTES => return Err(Malformed),
            Framing::UntilClose if is_end => Some(head.length..self.bytes.len()),
            Framing::UntilClose => return Ok(None),
            Framing::Chunked => {
                let Some(length) = decode(rest, &mut self.decoded)? else { return Ok(None) };
                return Ok(Some(Found { head, body: None, keeps_open: head.keeps_open && length == rest.len() }));
            }
        };
        let keeps_open = head.keeps_open && body.as_ref().is_some_and(|body| body.end == self.bytes.len());
        Ok(Some(Found { head, body, keeps_open }))
    }

    pub fn answer(&self, found: &Found) -> Answer<'_> {
        let body = match &found.body {
            Some(range) => self.bytes.get(range.clone()).unwrap_or_default(),
            None => self.decoded.as_slice(),
        };
        Answer { status: found.head.status, retry_after: found.head.retry_after, body }
    }

    /// Forgets the answer, before the next request of the connection.
    pub fn clear(&mut self) {
        self.head = None;
        for buffer in [&mut self.bytes, &mut self.decoded] {
            buffer.clear();
            buffer.shrink_to(KEPT_BYTES);
        }
    }
}

impl Head {
    /// The head at the beginning of these bytes; `None` while it is incomplete.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        let mut length = 0;
        loop {
            let mut headers = [EMPTY_HEADER; MAX_HEADERS];
            let mut response = httparse::Response::new(&mut headers);
            let Status::Complete(read) = response.parse(&bytes[length..]).map_err(|_| Malformed)? else {
                return if bytes.len() > MAX_HEAD_BYTES { Err(Malformed) } else { Ok(None) };
            };
            length += read;
            match response.code.ok_or(Malformed)? {
                // Asks to speak another protocol, which no request offered.
                101 => return Err(Malformed),
                // A provisional answer: the final one follows.
                100..=199 => {}
                status => return Self::of(status, response.version == Some(1), response.headers, length).map(Some),
            }
        }
    }

    fn of(status: u16, is_version_1_1: bool, headers: &[Header<'_>], length: usize) -> Result<Self, Malformed> {
        let mut head =
            Self { status, retry_after: None, length, framing: Framing::UntilClose, keeps_open: is_version_1_1 };
        let (mut body_length, mut coding) = (None, None);
        for Header { name, value } in headers {
            let Ok(value) = std::str::from_utf8(value) else { continue };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                let number: usize = value.parse().map_err(|_| Malformed)?;
                // With two different lengths, nobody knows where the answer ends.
                if body_length.replace(number).is_some_and(|other| other != number) {
                    return Err(Malformed);
                }
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                coding = value.rsplit(',').next().map(str::trim);
            } else if name.eq_ignore_ascii_case("retry-after") {
                head.retry_after = value.parse().ok().map(Duration::from_secs);
            } else if name.eq_ignore_ascii_case("connection") {
                let says = |word| value.split(',').any(|option| option.trim().eq_ignore_ascii_case(word));
                head.keeps_open = (head.keeps_open || says("keep-alive")) && !says("close");
            }
        }
        head.framing = match (status, coding, body_length) {
            (204 | 304, ..) => Framing::Length(0),
            (_, Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => Framing::Chunked,
            (_, Some(_), _) | (_, None, None) => Framing::UntilClose,
            (_, None, Some(length)) if length > MAX_BODY_BYTES => return Err(Malformed),
            (_, None, Some(length)) => Framing::Length(length),
        };
        Ok(head)
    }
}

/// Writes the body that these chunks carry to `decoded`. Returns the number of bytes up to its end, or `None` while chunks
/// are missing.
fn decode(bytes: &[u8], decoded: &mut Vec<u8>) -> Result<Option<usize>, Malformed> {
    decoded.clear();
    let mut rest = bytes;
    loop {
        let Status::Complete((begin, size)) = httparse::parse_chunk_size(rest).map_err(|_| Malformed)? else {
            return Ok(None);
        };
        rest = &rest[begin..];
        let size = usize::try_from(size).map_err(|_| Malformed)?;
        if size == 0 {
            // After the last chunk come trailers, and an empty line.
            let mut trailers = [EMPTY_HEADER; MAX_HEADERS];
            let ended = httparse::parse_headers(rest, &mut trailers).map_err(|_| Malformed)?;
            return Ok(match ended {
                Status::Complete((length, _)) => Some(bytes.len() - rest.len() + length),
                Status::Partial => None,
            });
        }
        if size > MAX_BODY_BYTES - decoded.len() {
            return Err(Malformed);
        }
        let (Some(chunk), Some(end)) = (rest.get(..size), rest.get(size..size + 2)) else { return Ok(None) };
        if end != b"\r\n" {
            return Err(Malformed);
        }
        decoded.extend_from_slice(chunk);
        rest = &rest[size + 2..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status, seconds to wait, body, and whether the connection is kept.
    type Seen = (u16, Option<u64>, String, bool);

    /// Reads an answer that comes in pieces of this size, and then the end of the connection.
    fn read(bytes: &[u8], piece: usize) -> Result<Option<Seen>, Malformed> {
        let mut incoming = Incoming::default();
        for (piece, is_end) in bytes.chunks(piece).map(|piece| (piece, false)).chain([(&[][..], true)]) {
            if let Some(found) = incoming.add(piece, is_end)? {
                let answer = incoming.answer(&found);
                let body = String::from_utf8_lossy(answer.body).into_owned();
                let retry_after_s = answer.retry_after.map(|pause| pause.as_secs());
                return Ok(Some((answer.status, retry_after_s, body, found.keeps_open)));
            }
        }
        Ok(None)
    }

    /// Whatever the framing, and wherever the packets end, the same answer is read.
    #[test]
    fn answers_are_the_same_in_pieces_of_any_size() {
        let refused = "HTTP/1.1 503 Busy\r\nretry-after: 2\r\nContent-Length: 4\r\n\r\nbusy";
        let chunks = "3\r\n{\"o\r\n2;x=y\r\n\":\r\n0\r\nTrailer: 1\r\n\r\n";
        let chunked = format!("HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        let until_close = "HTTP/1.0 502 Bad Gateway\r\nServer: proxy\r\n\r\n<html>";
        let early = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        let closing = "HTTP/1.1 409 Conflict\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
        let old = "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n";
        for (bytes, status, retry_after_s, body, keeps_open) in [
            (refused, 503, Some(2), "busy", true),
            (chunked.as_str(), 202, None, "{\"o\":", true),
            (until_close, 502, None, "<html>", false),
            (early, 204, None, "", true),
            (closing, 409, None, "{}", false),
            (old, 200, None, "", true),
        ] {
            for piece in [1, 2, 7, bytes.len()] {
                let expected = Ok(Some((status, retry_after_s, body.to_owned(), keeps_open)));
                assert_eq!(read(bytes.as_bytes(), piece), expected, "{bytes:?} in pieces of {piece}");
            }
        }
    }

    /// What cannot be read, or is larger than any answer of the API, is refused and does not fill the memory.
    #[test]
    fn what_is_no_answer_is_refused() {
        let head = |line: &str| format!("HTTP/1.1 200 OK\r\n{line}\r\n\r\n");
        let endless = [head("Transfer-Encoding: chunked"), "8000\r\n".to_owned(), "x".repeat(0x8000)].concat();
        let endless = format!("{endless}\r\n8001\r\n");
        for bytes in [
            "SSH-2.0-OpenSSH\r\n".to_owned(),
            "HTTP/1.1 101 Switching Protocols\r\n\r\n".to_owned(),
            head("Content-Length: 65537"),
            head("Content-Length: 1\r\nContent-Length: 2"),
            head("Content-Length: many"),
            head("Transfer-Encoding: chunked") + "x\r\n",
            head("Transfer-Encoding: chunked") + "1\r\nab\r\n",
            head(&format!("A: {}", "b".repeat(MAX_HEAD_BYTES))).replace("\r\n\r\n", ""),
            head("A: b") + &"c".repeat(MAX_BODY_BYTES + 1),
            endless,
        ] {
            assert_eq!(read(bytes.as_bytes(), 1024), Err(Malformed), "{:?}", &bytes[..bytes.len().min(80)]);
        }
    }

    /// An answer that is cut off is none.
    #[test]
    fn an_answer_that_is_cut_off_is_not_complete() {
        for bytes in ["", "HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"] {
            assert_eq!(read(bytes.as_bytes(), 9), Ok(None), "{bytes:?}");
        }
    }

    /// Bytes behind an answer belong to no request: the connection is not used again.
    #[test]
    fn a_connection_with_bytes_to_spare_is_not_kept() {
        let found = read(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc", 100);
        assert_eq!(found, Ok(Some((200, None, "a".to_owned(), false))));
    }
}
