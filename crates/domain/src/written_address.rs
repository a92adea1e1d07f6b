//! Addresses as proxies and gateways write them: alone, or with a port, brackets, quotes, a zone, or spaces around.

use std::net::{IpAddr, Ipv6Addr};

/// The address in a text; `None` if the text is none, such as `unknown` and the `_names` of RFC 7239.
pub fn read(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let text = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).map_or(text, str::trim);
    let address = if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
            return None;
        }
        ipv6(address)?.into()
    } else {
        match text.split_once(':') {
            None => text.parse().ok()?,
            Some((address, port)) if is_port(port) && address.contains('.') => IpAddr::V4(address.parse().ok()?),
            Some(_) => ipv6(text)?.into(),
        }
    };
    Some(address.to_canonical())
}

/// A zone names an interface of the machine that wrote the address, so it says nothing here.
fn ipv6(text: &str) -> Option<Ipv6Addr> {
    match text.split_once('%') {
        Some((_, "")) => None,
        Some((address, _)) => address.parse().ok(),
        None => text.parse().ok(),
    }
}

/// A port, or the name that hides one (RFC 7239).
fn is_port(text: &str) -> bool {
    let in_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    match text.strip_prefix('_') {
        Some(name) => !name.is_empty() && name.bytes().all(in_name),
        None => text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_every_form() {
        for (address, forms) in [
            (
                "203.0.113.7",
                &["203.0.113.7", "203.0.113.7:50007", " 203.0.113.7\t", "\"203.0.113.7\"", "203.0.113.7:_x-1"][..],
            ),
            (
                "203.0.113.7",
                &["::ffff:203.0.113.7", "[::ffff:203.0.113.7]:0", "\" 203.0.113.7:1 \"", "::FFFF:cb00:7107"],
            ),
            ("2001:db8::1", &["2001:db8::1", "[2001:db8::1]", "[2001:db8::1]:443", "\"[2001:DB8::1]:443\""]),
            (
                "2001:db8::1",
                &["2001:db8::1%eth0", "[2001:db8::1%25eth0]:65535", "[2001:db8::1]:_a.b", "2001:db8:0:0:0:0:0:1"],
            ),
            // Without brackets, the last group is no port.
            ("2001:db8::1:443", &["2001:db8::1:443"]),
            ("fe80::1", &["fe80::1%eth0", "[fe80::1%wlp3s0]:80", "\"fe80::1%7\""]),
        ] {
            for form in forms {
                assert_eq!(read(form), address.parse().ok(), "{form}");
            }
        }
    }

    #[test]
    fn other_texts_are_no_addresses() {
        let none = "|unknown|_hidden|_SEVKISEK|localhost|203.0.113|203.0.113.07|203.0.113.7:|203.0.113.7:65536|203.0.113.7:+1|\
                    203.0.113.7:_|203.0.113.7:x|203.0.113.7%eth0|203.0.113.7/32|[203.0.113.7]:1|203.0.113.7 1.2.3.4|\
                    2001:db8::1%|[2001:db8::1|2001:db8::1]|[2001:db8::1]443|[2001:db8::1]:|[2001:db8::1]:99999|[]|[]:1|\
                    2001:db8::g|\"|\"\"|\"203.0.113.7|203.0.113.7\"|:80|1:80|-|for=203.0.113.7|\u{fffd}|二";
        for text in none.split('|') {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
