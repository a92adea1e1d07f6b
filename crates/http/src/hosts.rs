//! The host names that the service answers to in development mode, where it trusts every client that can reach it. With DNS rebinding,
//! another site's page can make a browser reach it: the site changes its own name to 127.0.0.1 after the page has loaded, and the browser
//! sees one origin.

use actix_web::dev::RequestHead;
use actix_web::http::header::HOST;
use url::{Host, Url};

use seckill_domain::origin::Origin;

/// Whether a request names a host that others may have pointed to this machine. Only a name with a dot can be: containers have names
/// without a dot, and an address is not a name. The names in `own`, the configured origins, are the shop's.
pub fn is_foreign(request: &RequestHead, own: &[Origin]) -> bool {
    // Every browser sends the host.
    request.headers().get_all(HOST).any(|asked| {
        let asked = asked.to_str().ok().and_then(|asked| Url::parse(&format!("http://{asked}/")).ok());
        match asked.as_ref().and_then(Url::host) {
            Some(Host::Ipv4(_) | Host::Ipv6(_)) => false,
            Some(Host::Domain(name)) => {
                let is_own = |origin: &Origin| Url::parse(origin.as_str()).is_ok_and(|own| own.domain() == Some(name));
                name.contains('.') && !name.ends_with(".localhost") && !own.iter().any(is_own)
            }
            None => true,
        }
    })
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn names_that_others_can_choose_are_foreign() {
        let own: Vec<Origin> = vec!["https://shop.example".parse().unwrap(), "http://[::1]:8080".parse().unwrap()];
        let is_foreign = |host: &str| {
            let request = TestRequest::default().insert_header((HOST, host)).to_http_request();
            is_foreign(request.head(), &own)
        };
        let answered = "localhost localhost:8080 LOCALHOST shop.localhost:8080 127.0.0.1:8080 192.0.2.1 [::1]:8080 serve-1:8080 \
                        states shop.example Shop.Example:8080";
        for answered in answered.split(' ') {
            assert!(!is_foreign(answered), "{answered}");
        }
        let refused =
            "evil.example,127.0.0.1.evil.example:8080,localhost.evil.example,shop.example.,x.shop.example,,a b";
        for refused in refused.split(',') {
            assert!(is_foreign(refused), "{refused}");
        }
        assert!(!super::is_foreign(TestRequest::default().to_http_request().head(), &own), "HTTP/1.0");
    }
}
