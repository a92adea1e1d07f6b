//! A TCP forwarder in front of a server: it can be pointed at another one, and counts those who come.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

#[derive(Clone)]
pub struct Wire {
    pub address: SocketAddr,
    target: Arc<Mutex<String>>,
    snip: Arc<Notify>,
    callers: Arc<AtomicUsize>,
}

impl Wire {
    /// To a server at `host:port`.
    pub async fn to(target: &str) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let wire = Self {
            address: listener.local_addr()?,
            target: Arc::new(Mutex::new(target.to_owned())),
            snip: Arc::default(),
            callers: Arc::default(),
        };
        let this = wire.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                this.callers.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(this.clone().carry(near));
            }
        });
        Ok(wire)
    }

    async fn carry(self, mut near: TcpStream) {
        let cut = self.snip.notified();
        let target = self.target.lock().unwrap().clone();
        if let Ok(mut far) = TcpStream::connect(target).await {
            let (_, _) = (near.set_nodelay(true), far.set_nodelay(true));
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                () = cut => {}
            }
        }
    }

    /// Cuts all connections; new ones lead to the other server.
    pub fn point_at(&self, target: &str) {
        target.clone_into(&mut self.target.lock().unwrap());
        self.snip.notify_waiters();
    }

    /// How many have connected so far.
    pub fn callers(&self) -> usize {
        self.callers.load(Ordering::Relaxed)
    }
}

/// `host:port` of a URL like `redis://127.0.0.1:1234/`.
pub fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split('/').next().unwrap_or(rest);
    rest.rsplit_once('@').map_or(rest, |(_, authority)| authority)
}
