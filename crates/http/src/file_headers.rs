//! The headers of the pages' files. The service sends them, and the manifest of a published bundle lists them for the web server that
//! serves it.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Page,
    /// The page of the API's document. Swagger UI uses inline styles, and icons in `data:` addresses.
    Docs,
    /// A file whose name changes with its content: scripts, style, pictures.
    Hashed,
}

/// For pages: caches may keep a copy, and check it before each use.
pub(crate) const CHECKED: &str = "public, max-age=0, must-revalidate";
/// For files that never change: caches keep a copy for a year, and never check it.
pub(crate) const IMMUTABLE: &str = "public, max-age=31536000, immutable";

/// The headers of a kind of file, without headers that depend on its content. `api` is the origin of the API that the pages call; empty
/// if it is their own.
pub fn of(kind: Kind, api: &str) -> Vec<(&'static str, String)> {
    let cache = if kind == Kind::Hashed { IMMUTABLE } else { CHECKED };
    vec![
        ("Cache-Control", cache.to_owned()),
        // For scripts, too: a worker has the policy of its own script.
        ("Content-Security-Policy", content_policy(kind, api)),
        ("X-Content-Type-Options", "nosniff".to_owned()),
        ("Referrer-Policy", "strict-origin-when-cross-origin".to_owned()),
        ("Permissions-Policy", "camera=(), geolocation=(), microphone=()".to_owned()),
        ("Cross-Origin-Opener-Policy", "same-origin".to_owned()),
    ]
}

/// Allows only the sources that the pages use. Pictures of challenges have `data:` addresses.
fn content_policy(kind: Kind, api: &str) -> String {
    if kind == Kind::Docs {
        return "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; \
                form-action 'self'; frame-ancestors 'none'"
            .to_owned();
    }
    let own_and_api = if api.is_empty() { "'self'".to_owned() } else { format!("'self' {api}") };
    format!(
        "default-src 'none'; script-src {own_and_api}; style-src 'self'; img-src 'self' data:; connect-src {own_and_api}; \
         worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// deploy/headers.conf has them for nginx, which serves the bundle. nginx chooses the caching by the address.
    #[test]
    fn the_service_and_nginx_send_the_same_headers() {
        let nginx = include_str!("../../../deploy/headers.conf").lines().filter_map(|line| {
            let (name, value) = line.strip_prefix("add_header ")?.strip_suffix(" always;")?.split_once(' ')?;
            Some((name, value.trim_matches('"').to_owned()))
        });
        let mut own = of(Kind::Page, "");
        own.retain(|(name, _)| *name != "Cache-Control");
        assert_eq!(nginx.collect::<Vec<_>>(), own);
        own.push(("Cache-Control", IMMUTABLE.to_owned()));
        own.rotate_right(1);
        assert_eq!(of(Kind::Hashed, ""), own);
    }
}
