//! The trusted authorities for https:// connections.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::error::Error;

/// TLS 1.2 and 1.3, with the given authorities (PEM), or else the machine's.
pub(crate) fn config(root_certificates_pem: Option<&[u8]>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    match root_certificates_pem {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate =
                    certificate.map_err(|error| Error::invalid("the certificates", format!("{error:?}")))?;
                roots.add(certificate).map_err(|error| Error::invalid("the certificates", error))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            for error in found.errors {
                tracing::warn!(%error, "certificates cannot be read");
            }
            roots.add_parsable_certificates(found.certs);
        }
    }
    if roots.is_empty() {
        return Err(Error::invalid("the certificates", "have no authority that could be trusted"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid("the connection", error))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
