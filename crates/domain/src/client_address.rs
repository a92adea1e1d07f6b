//! The network address of a client.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::written_address;

/// The unit that limits count: an IPv4 address, or an IPv6 /64 network, because a client usually owns all addresses of one. Prefixes that
/// put strangers into one /64, or give one client many, are counted in another way: `unit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientAddress(Unit);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Unit {
    Address(IpAddr),
    /// The first 64 bits; the others are 0.
    Network(Ipv6Addr),
}

impl ClientAddress {
    /// Reads an address as a proxy, a gateway or this type writes it. Every text of one client gives the same value.
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim().strip_suffix("/64") {
            None => written_address::read(text).map(Self::from),
            Some(network) => {
                let client = Self::from(IpAddr::V6(network.parse().ok()?));
                // Some addresses of another network are no clients by networks.
                matches!(client.0, Unit::Network(_)).then_some(client)
            }
        }
    }
}

impl From<IpAddr> for ClientAddress {
    fn from(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(_) => Unit::Address(address),
            IpAddr::V6(address) => unit(address),
        })
    }
}

/// The unit of an IPv6 address.
fn unit(address: Ipv6Addr) -> Unit {
    let ipv4 = |high: u16, low: u16| Unit::Address(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)).into());
    match address.segments() {
        // IPv4 on an IPv6 socket; and what translators make of IPv4 clients (SIIT; NAT64's well-known prefix). The whole of IPv4 is in one
        // /64. No such address is routed on the Internet, so only a translator of the operator's can make one.
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => ipv4(high, low),
        // 6to4: the holder of an IPv4 address has 65,536 networks.
        [0x2002, high, low, ..] => ipv4(high, low),
        // Teredo: all users of a server are in one /64. The last 32 bits are the client's IPv4 address, inverted.
        [0x2001, 0, .., high, low] => ipv4(!high, !low),
        // NAT64 with a local prefix: the place of the IPv4 address depends on the prefix's length, but an address is one IPv4 client. And
        // link-local addresses: all neighbours are in one network.
        [0x64, 0xff9b, 1, ..] | [0xfe80..=0xfebf, ..] => Unit::Address(address.into()),
        // Also ISATAP (interface ids with 5efe and an IPv4 address): everybody with a network of his own can choose such ids.
        [a, b, c, d, ..] => Unit::Network([a, b, c, d, 0, 0, 0, 0].into()),
    }
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Unit::Address(address) => write!(f, "{address}"),
            Unit::Network(network) => write!(f, "{network}/64"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counted(text: &str) -> Option<String> {
        ClientAddress::parse(text).map(|client| client.to_string())
    }

    #[test]
    fn every_spelling_of_a_client_is_one() {
        for (client, spellings) in [
            ("192.0.2.7", &["192.0.2.7:50007", "::ffff:192.0.2.7", "[::ffff:c000:207]:1", "::FFFF:C000:0207%1"][..]),
            ("192.0.2.7", &["64:ff9b::192.0.2.7", "64:FF9B:0:0:0:0:C000:207", "::ffff:0:192.0.2.7", "\"192.0.2.7\""]),
            ("192.0.2.7", &["2002:c000:207::1", "2002:c000:207:9:8:7:6:5", "2001:0:4136:e378:8000:63bf:3fff:fdf8"]),
            ("198.51.100.1", &["[2001:0:1:2:3:4:39cc:9bfe]:80", "2002:c633:6401::"]),
            ("2001:db8:1:2::/64", &["2001:DB8:1:2::9", "2001:0db8:0001:0002:0:0:0:1", "[2001:db8:1:2::9]:443"]),
            (
                "2001:db8:1:2::/64",
                &["2001:db8:1:2:0:5efe:192.0.2.7", "2001:db8:1:2::5efe:c000:207", " 2001:db8:1:2::/64"],
            ),
            ("2001:db8:0:1::/64", &["2001:db8::1:0:0:0:7", "2001:db8::1:0:0:0:0/64", "2001:db8:0:1::%eth0"]),
            ("64:ff9b:1:2::c000:207", &["64:ff9b:1:2::192.0.2.7", "[64:ff9b:1:2:0:0:c000:207]:9"]),
            ("fe80::1:2", &["FE80::1:2%eth0", "fe80:0:0:0:0:0:1:2"]),
            ("::/64", &["::1", "::", "::192.0.2.7", "::1/64"]),
        ] {
            for text in spellings.iter().copied().chain([client]) {
                assert_eq!(counted(text).as_deref(), Some(client), "{text}");
            }
        }
    }

    #[test]
    fn strangers_are_two() {
        for (one, other) in [
            ("64:ff9b::1.2.3.4", "64:ff9b::1.2.3.5"),
            ("2001:0:1:2:3:4:5:6", "2001:0:1:2:3:4:5:7"),
            ("2002:102:304::1", "2002:102:305::1"),
            ("::ffff:0:1.2.3.4", "::ffff:0:1.2.4.4"),
            ("64:ff9b:1::1", "64:ff9b:1::2"),
            ("febf::1", "febf::2"),
            ("2001:db8:1:2::1", "2001:db8:1:3::1"),
            ("2001:1::1", "2001:2::1"),
        ] {
            assert_ne!(counted(one), counted(other));
        }
    }

    #[test]
    fn a_network_of_another_size_is_no_client() {
        for text in ["1.2.3.4/64", "2001:db8::/48", "2001:db8::1/128", "64:ff9b::/64", "::ffff:1.2.3.4/64", "/64", ""] {
            assert_eq!(counted(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_normal_form_of_a_normal_form_is_itself(bits: u128, prefix in 0..PREFIXES.len()) {
            let (prefix, length) = PREFIXES[prefix];
            let bits = prefix | bits & u128::MAX.unbounded_shr(length);
            let address = Ipv6Addr::from(bits);
            let written = ClientAddress::from(IpAddr::V6(address)).to_string();
            prop_assert_eq!(counted(&written), Some(written.clone()));
            prop_assert_eq!(counted(&address.to_string()), Some(written.clone()));
            let groups = address.segments().map(|group| format!("{group:04X}")).join(":");
            prop_assert_eq!(counted(&format!("\"[{groups}%25en0]:65535\"")), Some(written));
        }

        #[test]
        fn no_text_is_too_odd(text in "[0-9a-fA-F:.%/\\[\\]\" _-]{0,48}|\\PC{0,16}") {
            if let Some(written) = counted(&text) {
                prop_assert_eq!(counted(&written), Some(written));
            }
        }
    }

    /// The first bits of addresses, and their number.
    const PREFIXES: [(u128, u32); 9] = [
        (0, 0),
        (0, 64),
        (0xffff << 32, 96),
        (0xffff << 48, 96),
        (0x64_ff9b << 96, 96),
        (0x64_ff9b_0001 << 80, 48),
        (0x2002 << 112, 16),
        (0x2001 << 112, 32),
        (0xfe80 << 112, 10),
    ];
}
