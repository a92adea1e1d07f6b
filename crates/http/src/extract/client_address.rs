//! The address that a request comes from, as limits count it.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use actix_web::dev::RequestHead;
use actix_web::http::header::{FORWARDED, X_FORWARDED_FOR};
use parking_lot::Mutex;

use seckill_domain::client_address::ClientAddress;
use seckill_domain::proxies::{ForwardedHeader, ProxyNetwork};
use seckill_domain::written_address;

/// The proxies whose word about their clients counts, and the header that has it.
pub struct TrustedProxies {
    pub networks: Vec<ProxyNetwork>,
    pub header: ForwardedHeader,
}

/// The client's address: the nearest address that is not a trusted proxy's.
///
/// Without the header, or if the next hop in it is no address, the client counts as the proxy that named it. Hops before the unreadable one
/// may be the client's own invention. A limit of nobody would invite attackers, and refusing would close the shop to all. So all clients of
/// that proxy share one address's limits, and the metric and the log say so.
pub fn client_address(request: &RequestHead, proxies: &TrustedProxies) -> ClientAddress {
    let is_trusted = |address: &IpAddr| proxies.networks.iter().any(|network| network.contains(address));
    let peer = request.peer_addr.map_or(IpAddr::from([0, 0, 0, 0]), |peer| peer.ip().to_canonical());
    if !is_trusted(&peer) {
        return peer.into();
    }
    let (name, address_of) = match proxies.header {
        ForwardedHeader::XForwardedFor => (X_FORWARDED_FOR, readable as fn(&[u8]) -> _),
        ForwardedHeader::Forwarded => (FORWARDED, forwarded_for as _),
    };
    // Each proxy appends the address that it received from. Read from the end, while the proxies are trusted.
    let lines = request.headers().get_all(&name).rev();
    let hops = lines.flat_map(|line| rsplit_unquoted(line.as_bytes(), b',')).map(<[u8]>::trim_ascii);
    let mut hops = hops.filter(|hop| !hop.is_empty()).peekable();
    if hops.peek().is_none() {
        count_unnamed("missing");
    }
    let mut nearest = peer;
    for hop in hops {
        let Some(address) = address_of(hop) else {
            count_unnamed("unreadable");
            log_unreadable(proxies.header, hop);
            break;
        };
        nearest = address;
        if !is_trusted(&nearest) {
            break;
        }
    }
    nearest.into()
}

fn readable(text: &[u8]) -> Option<IpAddr> {
    written_address::read(std::str::from_utf8(text).ok()?)
}

/// The address of `for` in an element of Forwarded.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let values = rsplit_unquoted(element, b';').filter_map(|pair| {
        let at = pair.iter().position(|b| *b == b'=')?;
        pair[..at].trim_ascii().eq_ignore_ascii_case(b"for").then_some(&pair[at + 1..])
    });
    let mut values = values.fuse();
    match (values.next(), values.next()) {
        (Some(value), None) => readable(value),
        _ => None,
    }
}

/// Splits outside of quoted strings, from the end: then a quote that the client has left open does not hide what proxies have appended.
fn rsplit_unquoted(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut is_quoted = false;
    text.rsplit(move |b| {
        is_quoted ^= *b == b'"';
        *b == separator && !is_quoted
    })
}

fn count_unnamed(why: &'static str) {
    metrics::counter!("seckill_clients_unnamed_total", "why" => why).increment(1);
}

fn log_unreadable(header: ForwardedHeader, hop: &[u8]) {
    static LOGGED_AT: Mutex<Option<Instant>> = Mutex::new(None);
    if !is_due(&mut LOGGED_AT.lock(), Instant::now()) {
        return;
    }
    let hop = hop[..hop.len().min(HOP_SHOWN_BYTES)].escape_ascii();
    tracing::warn!(header = header.as_str(), %hop, "a trusted proxy names a client by no address: the client counts as the proxy");
}

const HOP_SHOWN_BYTES: usize = 64;
const LOG_EVERY: Duration = Duration::from_secs(60);

fn is_due(logged_at: &mut Option<Instant>, now: Instant) -> bool {
    let is_due = logged_at.is_none_or(|at| now.duration_since(at) >= LOG_EVERY);
    if is_due {
        *logged_at = Some(now);
    }
    is_due
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;
    use actix_web::test::TestRequest;
    use proptest::prelude::*;

    use super::*;

    fn from(peer: &str, header: ForwardedHeader, lines: &[&[u8]], trusted: &[&str]) -> String {
        let mut request = TestRequest::default().peer_addr(format!("{peer}:1000").parse().unwrap());
        for line in lines {
            let name = if header == ForwardedHeader::Forwarded { FORWARDED } else { X_FORWARDED_FOR };
            request = request.append_header((name, HeaderValue::from_bytes(line).unwrap()));
        }
        let networks = trusted.iter().map(|t| t.parse().unwrap()).collect();
        client_address(request.to_http_request().head(), &TrustedProxies { networks, header }).to_string()
    }

    fn address(peer: &str, lines: &[&str], trusted: &[&str]) -> String {
        let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        from(peer, ForwardedHeader::XForwardedFor, &lines, trusted)
    }

    #[test]
    fn only_configured_proxies_are_trusted() {
        assert_eq!(address("9.9.9.9", &["1.2.3.4"], &[]), "9.9.9.9");
        assert_eq!(address("9.9.9.9", &["1.2.3.4"], &["9.9.9.9"]), "1.2.3.4");
        // Entries that the client itself sent are not trusted: the last hop that is not our proxy counts.
        assert_eq!(address("9.9.9.9", &["6.6.6.6, 1.2.3.4"], &["9.9.9.9"]), "1.2.3.4");
        assert_eq!(address("9.9.9.9", &["6.6.6.6", "1.2.3.4, 8.8.8.8"], &["9.9.9.9", "8.8.8.8"]), "1.2.3.4");
        // Networks; and an address of IPv6 that contains a proxy's is not the proxy.
        let networks = ["10.0.0.0/8", "fd00::/8"];
        assert_eq!(address("10.3.2.1", &["6.6.6.6, 1.2.3.4, 10.9.9.9, fd00::9"], &networks), "1.2.3.4");
        assert_eq!(address("[::ffff:10.3.2.1]", &["1.2.3.4,10.9.9.9:80"], &networks), "1.2.3.4");
        assert_eq!(address("11.3.2.1", &["1.2.3.4"], &networks), "11.3.2.1");
        assert_eq!(address("10.3.2.1", &["6.6.6.6, 2002:a00:1::1"], &networks), "10.0.0.1");
    }

    #[test]
    fn an_ipv6_network_is_one_client() {
        let from = |peer: &str| address(peer, &[], &[]);
        assert_eq!(from("[2001:db8:1:2:aaaa::1]"), from("[2001:db8:1:2:bbbb::2]"));
        assert_ne!(from("[2001:db8:1:2::1]"), from("[2001:db8:1:3::1]"));
        assert_eq!(from("[2001:db8:1:2:aaaa::1]"), "2001:db8:1:2::/64");
        assert_eq!(from("[::ffff:1.2.3.4]"), "1.2.3.4");
    }

    #[test]
    fn a_proxy_may_write_addresses_in_any_form() {
        let proxies = ["9.9.9.9", "2001:db8:f::/48"];
        for (lines, client) in [
            (&["203.0.113.7:50007"][..], "203.0.113.7"),
            (&["6.6.6.6, \"203.0.113.7\" "], "203.0.113.7"),
            (&["6.6.6.6,203.0.113.7,[2001:db8:f::1]:443"], "203.0.113.7"),
            (&["6.6.6.6", "203.0.113.7,", ", ,", "2001:DB8:F::2%eth0"], "203.0.113.7"),
            (&["[2001:db8::1]:443"], "2001:db8::/64"),
            (&["fe80::1%eth0"], "fe80::1"),
            // The client's part of a line cannot hide the proxy's, nor make an earlier line count.
            (&["6.6.6.6", "\u{fffd}\", 203.0.113.7"], "203.0.113.7"),
            (&["6.6.6.6, \"a, 203.0.113.7"], "203.0.113.7"),
        ] {
            assert_eq!(address("9.9.9.9", lines, &proxies), client, "{lines:?}");
        }
        let binary: [&[u8]; 2] = [b"6.6.6.6", b"\xff\xfe, 203.0.113.7"];
        assert_eq!(from("9.9.9.9", ForwardedHeader::XForwardedFor, &binary, &proxies), "203.0.113.7");
    }

    #[test]
    fn forwarded_is_read_where_it_is_the_header() {
        let read = |lines: &[&str]| {
            let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
            from("9.9.9.9", ForwardedHeader::Forwarded, &lines, &["9.9.9.9", "10.0.0.0/8"])
        };
        for (lines, client) in [
            (&["for=\"[2001:db8:cafe::17]:4711\";proto=https"][..], "2001:db8:cafe::/64"),
            (&["For=192.0.2.43, FOR=\"198.51.100.17:80\";by=203.0.113.60"], "198.51.100.17"),
            (
                &["for=192.0.2.43", "proto=http;host=\"a,b;for=1.1.1.1\";for = 198.51.100.17 , for=10.1.2.3;by=_x"],
                "198.51.100.17",
            ),
            (&["for=192.0.2.43;by=\"x, for=198.51.100.17"], "198.51.100.17"),
            // The next hop has no address: the nearest one is the proxy's.
            (&["for=192.0.2.43, for=unknown, for=10.1.2.3"], "10.1.2.3"),
            (&["for=192.0.2.43, for=_hidden"], "9.9.9.9"),
            (&["for=192.0.2.43, proto=https"], "9.9.9.9"),
            (&["for=192.0.2.43, for=1.1.1.1;for=2.2.2.2"], "9.9.9.9"),
            (&["192.0.2.43"], "9.9.9.9"),
        ] {
            assert_eq!(read(lines), client, "{lines:?}");
        }
        // The other header counts for nothing.
        assert_eq!(address("9.9.9.9", &["for=192.0.2.43"], &["9.9.9.9"]), "9.9.9.9");
    }

    #[test]
    fn behind_an_unreadable_hop_a_client_is_the_proxy() {
        for (line, client) in [
            ("nonsense", "9.9.9.9"),
            ("6.6.6.6, unknown", "9.9.9.9"),
            ("6.6.6.6, _SEVKISEK, 8.8.8.8", "8.8.8.8"),
            ("6.6.6.6, 1.2.3.4.5, , 8.8.8.8:1", "8.8.8.8"),
        ] {
            assert_eq!(address("9.9.9.9", &[line], &["9.9.9.9", "8.8.8.8"]), client, "{line}");
        }
    }

    proptest! {
        /// Whatever a client writes, a line of its own or the beginning of the proxy's, the proxy's word counts.
        #[test]
        fn the_proxys_word_counts_after_any_other(
            own in prop::collection::vec("[ -~\\u{80}-\\u{ff}]{0,40}", 0..3),
            begun in "([ -~]|\"|,|;|for=|=){0,20}",
        ) {
            for (header, said) in [
                (ForwardedHeader::XForwardedFor, "203.0.113.7"),
                (ForwardedHeader::Forwarded, "for=203.0.113.7;proto=http"),
                (ForwardedHeader::Forwarded, "by=\"_a,b\";FOR=\"[::ffff:203.0.113.7]:1\""),
            ] {
                let last = format!("{begun}, {said}");
                let lines: Vec<&[u8]> = own.iter().chain([&last]).map(|line| line.as_bytes()).collect();
                prop_assert_eq!(from("9.9.9.9", header, &lines, &["9.9.9.9"]), "203.0.113.7");
                // Without it, nothing is too odd.
                from("9.9.9.9", header, &[&lines[..lines.len() - 1], &[begun.as_bytes()]].concat(), &["9.9.9.9"]);
            }
        }
    }

    #[test]
    fn the_log_has_one_line_a_minute() {
        let (began, mut logged_at) = (Instant::now(), None);
        let due = [0, 1, 59, 60, 61, 119, 120, 500].map(|s| is_due(&mut logged_at, began + Duration::from_secs(s)));
        assert_eq!(due, [true, false, false, true, false, false, true, true]);
    }
}
