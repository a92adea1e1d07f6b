//! An HTTP receiver for tests: it records when the first byte of each request arrived, and answers as scripted.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// One request, as it arrived.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub at: Instant,
    pub idempotency_key: String,
    pub body: serde_json::Value,
    /// The head and the body as they arrived, for tests of signatures.
    pub head: String,
    pub bytes: Vec<u8>,
}

impl Arrival {
    pub fn header(&self, name: &str) -> String {
        header(&self.head, name)
    }
}

/// An answer: status, further headers, and how long to wait before it is sent.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: &'static str,
    pub after: Duration,
}

impl Reply {
    pub const OK: Self = Self { status: 200, headers: "", after: Duration::ZERO };

    pub const fn status(status: u16) -> Self {
        Self { status, ..Self::OK }
    }
}

type Script = Box<dyn Fn(&Arrival, usize) -> Reply + Send + Sync>;

pub struct Receiver {
    pub address: SocketAddr,
    tls: bool,
    seen: Arc<Mutex<Vec<Arrival>>>,
    connections: Arc<AtomicUsize>,
}

impl Receiver {
    /// Answers 200 at once.
    pub fn start() -> Self {
        Self::scripted(|_, _| Reply::OK)
    }

    /// Answers by a script, which is given the request and how often its key has arrived before.
    pub fn scripted(script: impl Fn(&Arrival, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), script)
    }

    pub fn at(address: SocketAddr, script: impl Fn(&Arrival, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::listen(address, None, Box::new(script))
    }

    /// Answers 200 at once, over TLS.
    pub fn over_tls(terms: ServerConfig) -> Self {
        Self::listen("127.0.0.1:0".parse().unwrap(), Some(Arc::new(terms)), Box::new(|_, _| Reply::OK))
    }

    fn listen(address: SocketAddr, terms: Option<Arc<ServerConfig>>, script: Script) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let (script, tls) = (Arc::new(script), terms.is_some());
        let (seen, connections) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (all, opened) = (Arc::clone(&seen), Arc::clone(&connections));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                opened.fetch_add(1, Ordering::Relaxed);
                let (script, seen, terms) = (Arc::clone(&script), Arc::clone(&all), terms.clone());
                std::thread::spawn(move || {
                    let _ = stream.set_nodelay(true);
                    match terms {
                        None => serve(stream, &script, &seen),
                        Some(terms) => {
                            serve(StreamOwned::new(ServerConnection::new(terms).unwrap(), stream), &script, &seen);
                        }
                    }
                });
            }
        });
        Self { address, tls, seen, connections }
    }

    pub fn url(&self) -> String {
        format!("{}://{}/take", if self.tls { "https" } else { "http" }, self.address)
    }

    /// How many connections were opened.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub fn seen(&self) -> Vec<Arrival> {
        self.seen.lock().unwrap().clone()
    }

    /// How often each key arrived.
    pub fn times(&self) -> HashMap<String, usize> {
        let mut times = HashMap::new();
        self.seen().into_iter().for_each(|arrival| *times.entry(arrival.idempotency_key).or_default() += 1);
        times
    }
}

/// Answers the requests of one connection until it is closed.
fn serve(mut stream: impl Read + Write, script: &Script, seen: &Mutex<Vec<Arrival>>) {
    let mut buffer = Vec::new();
    loop {
        let mut stamp = None;
        let (head, length) = loop {
            if let Some(found) = head_of(&buffer) {
                break found;
            }
            if !more(&mut stream, &mut buffer) {
                return;
            }
            stamp.get_or_insert_with(Instant::now);
        };
        let at = stamp.expect("one request at a time");
        while buffer.len() < head.len() + length {
            if !more(&mut stream, &mut buffer) {
                return;
            }
        }
        let bytes = buffer[head.len()..head.len() + length].to_vec();
        buffer.drain(..head.len() + length);
        let body = serde_json::from_slice(&bytes).unwrap();
        let arrival = Arrival { at, idempotency_key: header(&head, "idempotency-key"), body, head, bytes };
        let before = {
            let mut seen = seen.lock().unwrap();
            let before = seen.iter().filter(|a| a.idempotency_key == arrival.idempotency_key).count();
            seen.push(arrival.clone());
            before
        };
        let reply = script(&arrival, before);
        std::thread::sleep(reply.after);
        let text = format!("HTTP/1.1 {} X\r\n{}content-length: 2\r\n\r\nok", reply.status, reply.headers);
        if stream.write_all(text.as_bytes()).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

fn more(stream: &mut impl Read, buffer: &mut Vec<u8>) -> bool {
    let mut chunk = [0; 4096];
    match stream.read(&mut chunk) {
        Ok(0) | Err(_) => false,
        Ok(n) => {
            buffer.extend_from_slice(&chunk[..n]);
            true
        }
    }
}

fn head_of(buffer: &[u8]) -> Option<(String, usize)> {
    let end = buffer.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let head = String::from_utf8(buffer[..end].to_vec()).unwrap();
    let length = header(&head, "content-length").parse().unwrap();
    Some((head, length))
}

fn header(head: &str, name: &str) -> String {
    let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")));
    line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}
