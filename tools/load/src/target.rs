//! The service's address, resolved once for all connections.

use std::net::SocketAddr;

use http::Uri;

use super::LoadError;

#[derive(Debug)]
pub(crate) struct Target {
    pub address: SocketAddr,
    /// The value of the Host header.
    pub host: String,
    prefix: String,
}

impl Target {
    pub(crate) async fn resolve(base: &str) -> Result<Self, LoadError> {
        let invalid = || LoadError::Base(base.to_owned());
        let uri: Uri = base.trim_end_matches('/').parse().map_err(|_| invalid())?;
        let authority = uri.authority().ok_or_else(invalid)?;
        if uri.scheme_str() != Some("http") {
            return Err(invalid());
        }
        // A URL has brackets around an IPv6 address; the resolver takes it without them.
        let host = authority.host().trim_matches(['[', ']']);
        let unresolved = |source| LoadError::Resolve { host: host.to_owned(), source };
        let mut found =
            tokio::net::lookup_host((host, authority.port_u16().unwrap_or(80))).await.map_err(unresolved)?;
        let address = found.next().ok_or_else(invalid)?;
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { address, host: authority.as_str().to_owned(), prefix })
    }

    /// The path of a request, after the path of the base address.
    pub(crate) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The crowd speaks plain HTTP only, and says so before it starts.
    #[tokio::test]
    async fn only_plain_http_is_accepted() {
        for base in ["https://127.0.0.1:1", "127.0.0.1:8080", "http://", "nonsense"] {
            assert!(matches!(Target::resolve(base).await, Err(LoadError::Base(_))), "{base}");
        }
    }

    /// A service behind a path of a proxy is called under that path.
    #[tokio::test]
    async fn a_path_before_the_api_is_kept() -> Result<(), LoadError> {
        for (base, expected) in [("http://127.0.0.1:8080/", "/api"), ("http://[::1]/shop/", "/shop/api")] {
            let target = Target::resolve(base).await?;
            assert_eq!(target.path("/api"), expected);
        }
        Ok(())
    }
}
