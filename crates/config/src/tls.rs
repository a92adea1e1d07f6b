//! TLS to Redis, PostgreSQL and RabbitMQ: private certificate authorities, and the reason why a server's certificate is refused.

use std::error::Error;
use std::io;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Deserializer};

use super::variable_of;

#[derive(Clone)]
pub struct CaFile(Arc<[CertificateDer<'static>]>, Arc<[u8]>);

impl CaFile {
    pub(crate) fn read(path: &str) -> Result<Self, String> {
        let wrong = |why: &dyn std::fmt::Display| format!("{path}: {why}");
        let pem = std::fs::read(path).map_err(|error| wrong(&error))?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let certificates = certificates.map_err(|error| wrong(&error))?;
        if certificates.is_empty() {
            return Err(wrong(&"has no certificate in PEM"));
        }
        for certificate in &certificates {
            RootCertStore::empty().add(certificate.clone()).map_err(|error| wrong(&error))?;
        }
        Ok(Self(certificates.into(), pem.into()))
    }

    pub fn certificates(&self) -> Vec<CertificateDer<'static>> {
        self.0.to_vec()
    }

    pub fn pem(&self) -> Vec<u8> {
        self.1.to_vec()
    }
}

pub(super) fn ca_file<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<CaFile>, D::Error> {
    let path = String::deserialize(deserializer)?;
    let file = (!path.is_empty()).then(|| CaFile::read(&path)).transpose();
    file.map_err(serde::de::Error::custom)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// `None` for a local socket.
    pub host: Option<String>,
    pub protection: Protection,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    Nothing,
    /// TLS that accepts any certificate.
    AnyCertificate,
    /// TLS that checks the certificate.
    CheckedCertificate,
}

/// A server answers, but a TLS connection to it is impossible: a service does not start.
#[derive(Debug, thiserror::Error)]
#[error(
    "no TLS connection to {server}: {problem} ({setting} must be the file of the authority that signed the server's \
     certificate, and {address} the name in it; set {})",
    variable_of(setting)
)]
pub struct TlsRefused {
    pub server: &'static str,
    pub problem: String,
    pub address: &'static str,
    pub setting: &'static str,
}

/// Why a TLS handshake failed, if this is the cause of the error: the server's certificate is untrusted or has another name, or the
/// server has no TLS.
pub fn handshake_problem(error: &io::Error) -> Option<String> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).map(ToString::to_string)
}

/// The same for an error whose source is the handshake's error.
pub fn handshake_problem_below(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        // The client of Redis shares its error, which hides the type.
        let shared = error.downcast_ref::<Arc<dyn Error + Send + Sync>>();
        let io = shared.map_or_else(|| error.downcast_ref(), |shared| shared.downcast_ref::<io::Error>());
        if let Some(problem) = io.and_then(handshake_problem) {
            return Some(problem);
        }
        next = error.source();
    }
    None
}
