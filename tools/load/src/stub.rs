//! A server for tests, which answers as a test tells it to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Stub {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Stub {
    /// Serves each connection by a task of its own; `serve` is told which connection it is, from 0 on.
    pub(crate) async fn start<F>(serve: impl Fn(Served, usize) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                tokio::spawn(serve(Served { stream, came: Vec::new() }, counter.fetch_add(1, Relaxed)));
            }
        });
        Self { address, connections }
    }

    /// Answers each request by the result of `answer`.
    pub(crate) async fn answering(answer: impl Fn(&str) -> String + Send + Sync + Clone + 'static) -> Self {
        Self::start(move |mut served, _| {
            let answer = answer.clone();
            async move {
                while let Some(request) = served.request().await {
                    served.say(&answer(&request)).await;
                }
            }
        })
        .await
    }

    /// Number of connections that were opened so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }
}

/// The server's end of a connection.
pub(crate) struct Served {
    stream: TcpStream,
    came: Vec<u8>,
}

impl Served {
    /// The next request, with its body; `None` once the connection is closed. Fails if anything follows the request:
    /// a crowd has one request in flight.
    pub(crate) async fn request(&mut self) -> Option<String> {
        let mut whole = None;
        loop {
            if whole.is_none()
                && let Some(end) = self.came.windows(4).position(|bytes| bytes == b"\r\n\r\n")
            {
                let head = std::str::from_utf8(&self.came[..end]).unwrap();
                let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
                whole = Some(end + 4 + length.map_or(0, |length| length.parse::<usize>().unwrap()));
            }
            if let Some(whole) = whole {
                assert!(self.came.len() <= whole, "two requests are in flight");
                if self.came.len() == whole {
                    return Some(String::from_utf8(std::mem::take(&mut self.came)).unwrap());
                }
            }
            match self.stream.read_buf(&mut self.came).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Sends these bytes. The crowd may have hung up meanwhile.
    pub(crate) async fn say(&mut self, bytes: &str) {
        let _ = self.stream.write_all(bytes.as_bytes()).await;
    }
}

/// An answer with a JSON body; `headers` are further lines, each with its end.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}
