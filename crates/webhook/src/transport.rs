//! The transport of a request: TCP, or TLS over TCP.
//!
//! A receiver's certificate must be signed by an authority that this machine trusts. SSL_CERT_FILE and SSL_CERT_DIR replace these, for
//! example by a bank's own authority.

use std::io;
use std::sync::{Arc, LazyLock};

use tokio::net::TcpStream;
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

/// Connects; with TLS, also checks the receiver's certificate.
pub(crate) async fn connect((host, port): (&str, u16), tls: bool) -> io::Result<Transport> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    if !tls {
        return Ok(Either::Left(stream));
    }
    let connector = TLS.as_ref().map_err(io::Error::other)?;
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Either::Right(connector.connect(name, stream).await?))
}
