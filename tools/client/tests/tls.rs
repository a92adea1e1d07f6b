//! The feature `tls`: a service's certificate is checked against the given authority.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use seckill_client::{BuyerClient, Error, Service};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

type Authority = Issuer<'static, KeyPair>;

/// A new authority, and its certificate.
fn authority() -> (String, Authority) {
    let (mut terms, key) = (CertificateParams::default(), KeyPair::generate().unwrap());
    terms.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (terms.self_signed(&key).unwrap().pem(), Issuer::new(terms, key))
}

/// A server that serves the time over TLS, with a certificate for 127.0.0.1 by this authority. Returns its address.
async fn clock(authority: &Authority) -> String {
    let key = KeyPair::generate().unwrap();
    let terms = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = terms.signed_by(&key, authority).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
        .unwrap();
    let (acceptor, listener) = (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let address = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that does not trust the certificate hangs up here.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            assert!(head.starts_with(b"GET /api/v1/time "), "{}", String::from_utf8_lossy(&head));
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\nconnection: close\r\n\r\n{\"now_ms\":42}";
            stream.write_all(answer).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn a_service_is_believed_by_its_authority_alone() {
    let ((ours, issuer), (other, _)) = (authority(), authority());
    let address = clock(&issuer).await;
    let buyer = |pem: String| {
        let service = Service::builder(&address).root_certificates_pem(pem).build().unwrap();
        BuyerClient::without_token(&service)
    };
    assert_eq!(buyer(ours).now_ms().await.unwrap(), 42);
    let refused = buyer(other).now_ms().await.unwrap_err();
    assert!(matches!(&refused, Error::Connect(why) if why.contains("certificate")), "{refused}");
    for nonsense in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let service = Service::builder(&address).root_certificates_pem(nonsense).build();
        assert!(matches!(service, Err(Error::Invalid { .. })), "{nonsense:?}");
    }
}
