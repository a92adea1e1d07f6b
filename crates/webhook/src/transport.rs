//! The transport of a request: TCP, or TLS over TCP.
//!
//! A receiver's certificate must be signed by an authority that this machine trusts. SSL_CERT_FILE and SSL_CERT_DIR replace these, for
//! example by a bank's own authority.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use std::{io, iter, mem};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore};
use tokio_util::either::Either;

pub(crate) type Transport = Either<TcpStream, TlsStream<TcpStream>>;

/// Made for the first https:// receiver, and used until the process ends.
static TLS: LazyLock<Result<TlsConnector, Error>> =
    LazyLock::new(|| Ok(TlsConnector::from(Arc::new(tls_config(None)?))));

/// TLS 1.2 and 1.3 with these authorities, or else with those of the machine.
///
/// # Errors
/// There is no authority, or the cryptography does not support these versions.
pub fn tls_config(roots: Option<RootCertStore>) -> Result<ClientConfig, Error> {
    let of_machine = || {
        let (mut roots, found) = (RootCertStore::empty(), rustls_native_certs::load_native_certs());
        for error in found.errors {
            tracing::warn!(%error, "certificates cannot be read");
        }
        roots.add_parsable_certificates(found.certs);
        roots
    };
    let roots = roots.unwrap_or_else(of_machine);
    if roots.is_empty() {
        return Err(Error::General("the certificates have no authority that could be trusted".to_owned()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// The pause before the next address is tried, too.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// Connects to the first of a name's addresses that answers (Happy Eyeballs, RFC 8305, 5): an address that answers nothing delays the next
/// one by 250 ms. IPv6 and IPv4 take turns.
pub async fn connect_to_any<T, F>(addresses: Vec<SocketAddr>, connect: impl Fn(SocketAddr) -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let (first, second): (Vec<SocketAddr>, Vec<SocketAddr>) =
        addresses.iter().partition(|address| address.is_ipv6() == addresses[0].is_ipv6());
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut next = iter::from_fn(|| {
        mem::swap(&mut first, &mut second);
        second.next().or_else(|| first.next())
    });
    let mut tries = FuturesUnordered::new();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        match next.next() {
            Some(address) => tries.push(connect(address)),
            None if tries.is_empty() => return Err(failure),
            None => {}
        }
        tokio::select! {
            Some(connected) = tries.next() => match connected {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            },
            () = sleep(NEXT_ADDRESS_AFTER) => {}
        }
    }
}

/// Connects; with TLS, also checks the receiver's certificate.
pub(crate) async fn connect((host, port): (&str, u16), tls: bool) -> io::Result<Transport> {
    let stream = connect_to_any(tokio::net::lookup_host((host, port)).await?.collect(), TcpStream::connect).await?;
    stream.set_nodelay(true)?;
    if !tls {
        return Ok(Either::Left(stream));
    }
    let connector = TLS.as_ref().map_err(io::Error::other)?;
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Either::Right(connector.connect(name, stream).await?))
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};
    use tokio::time::timeout;

    use super::*;

    /// A socket whose queue is full: it answers nothing.
    async fn black_hole() -> (SocketAddr, tokio::net::TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = timeout(Duration::from_millis(300), TcpStream::connect(address)).await {
            waiting.push(stream.unwrap());
        }
        (address, listener, waiting)
    }

    #[tokio::test]
    async fn the_first_address_that_answers_is_used() {
        let (hole, _listener, _waiting) = black_hole().await;
        let well = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let well = well.local_addr().unwrap();
        for addresses in [vec![hole, well], vec![closed, hole, hole, well], vec![well, hole], vec![well]] {
            assert_eq!(connect_to_any(addresses, TcpStream::connect).await.unwrap().peer_addr().unwrap(), well);
        }
        let refused = connect_to_any(vec![closed, closed], TcpStream::connect).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(connect_to_any(vec![], TcpStream::connect).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
