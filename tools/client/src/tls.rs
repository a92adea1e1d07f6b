//! The trusted authorities for https:// connections.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::error::Error;

/// TLS with the given authorities (PEM), or else the machine's.
pub(crate) fn config(root_certificates_pem: Option<&[u8]>) -> Result<ClientConfig, Error> {
    let roots = root_certificates_pem.map(authorities).transpose()?;
    seckill_webhook::tls_config(roots).map_err(|error| Error::invalid("the connection", error))
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| Error::invalid("the certificates", format!("{error:?}")))?;
        roots.add(certificate).map_err(|error| Error::invalid("the certificates", error))?;
    }
    Ok(roots)
}
