//! Connections to the broker over TLS.

use lapin::tcp::{AsyncTcpStream, RustlsConnectorConfig};
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties, runtime};

use crate::config::tls::CaFile;

/// Connects to a broker with a certificate from these authorities, or from the machine's trusted ones.
pub(super) async fn connect(
    uri: AMQPUri,
    properties: ConnectionProperties,
    authorities: Option<&CaFile>,
) -> lapin::Result<Connection> {
    let Some(authorities) = authorities else { return Connection::connect_uri(uri, properties).await };
    // lapin's own setting for authorities fails on a machine without trusted ones.
    let trusted = RustlsConnectorConfig::default().with_parsable_certificates(authorities.certificates());
    let connector = trusted.connector_with_no_client_auth()?;
    Connection::connector(
        uri,
        runtime::default_runtime()?,
        async move |uri, runtime| {
            let host = uri.authority.host;
            let address = runtime.to_socket_addrs((host.clone(), uri.authority.port));
            let stream = AsyncTcpStream::connect(&runtime, address).await?;
            Ok(stream.into_rustls(&connector, &host).await?)
        },
        properties,
    )
    .await
}
