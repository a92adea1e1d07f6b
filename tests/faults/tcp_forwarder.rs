//! A TCP forwarder in front of a server. It can be pointed at another server.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

#[derive(Clone)]
pub struct TcpForwarder {
    pub address: SocketAddr,
    target: Arc<Mutex<String>>,
    cut_all: Arc<Notify>,
}

impl TcpForwarder {
    pub async fn to(target: &str) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let forwarder = Self {
            address: listener.local_addr()?,
            target: Arc::new(Mutex::new(target.to_owned())),
            cut_all: Arc::default(),
        };
        let this = forwarder.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(this.clone().forward(client));
            }
        });
        Ok(forwarder)
    }

    async fn forward(self, mut client: TcpStream) {
        let cut = self.cut_all.notified();
        let target = self.target.lock().unwrap().clone();
        if let Ok(mut server) = TcpStream::connect(target).await {
            let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                () = cut => {}
            }
        }
    }

    /// Cuts all connections. New ones lead to `target`.
    pub fn point_at(&self, target: &str) {
        target.clone_into(&mut self.target.lock().unwrap());
        self.cut_all.notify_waiters();
    }
}

/// `host:port` of a URL like `redis://127.0.0.1:1234/`.
pub fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split('/').next().unwrap_or(rest);
    rest.rsplit_once('@').map_or(rest, |(_, authority)| authority)
}
