//! The address that a request comes from, as limits count it.

use std::net::IpAddr;

use actix_web::dev::RequestHead;
use actix_web::http::header::X_FORWARDED_FOR;

use seckill_domain::client_address::ClientAddress;

/// The client's address: the nearest address that is not a trusted proxy's.
pub fn client_address(request: &RequestHead, trusted_proxies: &[IpAddr]) -> ClientAddress {
    let peer = request.peer_addr.map_or(IpAddr::from([0, 0, 0, 0]), |peer| peer.ip().to_canonical());
    let mut nearest = peer;
    if trusted_proxies.contains(&peer) {
        // Each proxy appends the address that it received from. Read from the end, while the proxies are trusted.
        let headers = request.headers().get_all(X_FORWARDED_FOR).rev();
        for hop in headers.filter_map(|value| value.to_str().ok()).flat_map(|value| value.rsplit(',')) {
            let Ok(address) = hop.trim().parse::<IpAddr>() else { break };
            nearest = address.to_canonical();
            if !trusted_proxies.contains(&nearest) {
                break;
            }
        }
    }
    nearest.into()
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    fn address(peer: &str, forwarded: &[&str], trusted: &[&str]) -> String {
        let mut request = TestRequest::default().peer_addr(format!("{peer}:1000").parse().unwrap());
        for value in forwarded {
            request = request.append_header(("X-Forwarded-For", *value));
        }
        let trusted: Vec<IpAddr> = trusted.iter().map(|t| t.parse().unwrap()).collect();
        client_address(request.to_http_request().head(), &trusted).to_string()
    }

    #[test]
    fn only_configured_proxies_are_trusted() {
        assert_eq!(address("9.9.9.9", &["1.2.3.4"], &[]), "9.9.9.9");
        assert_eq!(address("9.9.9.9", &["1.2.3.4"], &["9.9.9.9"]), "1.2.3.4");
        // Entries that the client itself sent are not trusted: the last hop that is not our proxy counts.
        assert_eq!(address("9.9.9.9", &["6.6.6.6, 1.2.3.4"], &["9.9.9.9"]), "1.2.3.4");
        assert_eq!(address("9.9.9.9", &["6.6.6.6", "1.2.3.4, 8.8.8.8"], &["9.9.9.9", "8.8.8.8"]), "1.2.3.4");
        assert_eq!(address("9.9.9.9", &["nonsense"], &["9.9.9.9"]), "9.9.9.9");
    }

    #[test]
    fn an_ipv6_network_is_one_client() {
        let from = |peer: &str| address(peer, &[], &[]);
        assert_eq!(from("[2001:db8:1:2:aaaa::1]"), from("[2001:db8:1:2:bbbb::2]"));
        assert_ne!(from("[2001:db8:1:2::1]"), from("[2001:db8:1:3::1]"));
        assert_eq!(from("[2001:db8:1:2:aaaa::1]"), "2001:db8:1:2::/64");
        assert_eq!(from("[::ffff:1.2.3.4]"), "1.2.3.4");
    }
}
