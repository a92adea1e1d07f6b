//! The proxies in front of the service, and how they name their clients.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

/// The header in which proxies name their clients. Only one is read: a proxy that sets one of them usually passes the other on as its client
/// wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str, parse_err_ty = UnknownHeader, parse_err_fn = unknown_header)]
pub enum ForwardedHeader {
    XForwardedFor,
    /// RFC 7239.
    Forwarded,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be x-forwarded-for or forwarded")]
pub struct UnknownHeader;

fn unknown_header(_: &str) -> UnknownHeader {
    UnknownHeader
}

impl ForwardedHeader {
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// The addresses of trusted proxies: one address, or all of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyNetwork(IpNet);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongNetwork {
    #[error("must be an address such as 10.0.0.7 or fd00::7, or a network such as 10.0.0.0/8 or fd00::/8")]
    Unreadable,
    #[error("has bits after the prefix: write {0}")]
    HostBits(IpNet),
}

impl ProxyNetwork {
    /// `address` is canonical: IPv4 is not mapped into IPv6.
    pub fn contains(&self, address: &IpAddr) -> bool {
        self.0.contains(address)
    }

    pub fn prefix_len(&self) -> u8 {
        self.0.prefix_len()
    }

    /// The first address.
    pub fn address(&self) -> IpAddr {
        self.0.network()
    }
}

impl FromStr for ProxyNetwork {
    type Err = WrongNetwork;

    fn from_str(text: &str) -> Result<Self, WrongNetwork> {
        let network = text.parse::<IpAddr>().map(IpNet::from).or_else(|_| text.parse::<IpNet>());
        let network = network.map_err(|_| WrongNetwork::Unreadable)?;
        if network != network.trunc() {
            return Err(WrongNetwork::HostBits(network.trunc()));
        }
        Ok(Self(match network {
            IpNet::V6(mapped) if mapped.prefix_len() >= 96 => match mapped.addr().to_ipv4_mapped() {
                Some(address) => Ipv4Net::new_assert(address, mapped.prefix_len() - 96).into(),
                None => network,
            },
            IpNet::V4(_) | IpNet::V6(_) => network,
        }))
    }
}

impl fmt::Display for ProxyNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.prefix_len() == self.0.max_prefix_len() {
            true => self.0.addr().fmt(f),
            false => self.0.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_an_address_or_a_network() {
        for (text, written, inside, outside) in [
            ("10.0.0.7", "10.0.0.7", "10.0.0.7", "10.0.0.8"),
            ("10.0.0.0/8", "10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("192.0.2.64/26", "192.0.2.64/26", "192.0.2.127", "192.0.2.128"),
            ("0.0.0.0/0", "0.0.0.0/0", "9.9.9.9", "2001:db8::1"),
            ("fd00::/8", "fd00::/8", "fdff::1", "fe00::1"),
            ("FD00:0::7", "fd00::7", "fd00::7", "fd00::8"),
            ("::ffff:10.0.0.7", "10.0.0.7", "10.0.0.7", "10.0.0.6"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8", "10.1.2.3", "11.0.0.1"),
        ] {
            let network: ProxyNetwork = text.parse().unwrap();
            assert_eq!(network.to_string(), written);
            assert!(
                network.contains(&inside.parse().unwrap()) && !network.contains(&outside.parse().unwrap()),
                "{text}"
            );
        }
        for text in ["", "proxy", "10.0.0.0/33", "10.0.0.0/", "fd00::/129", "10.0.0/8", "10.0.0.7:80", "[fd00::7]"] {
            assert_eq!(text.parse::<ProxyNetwork>(), Err(WrongNetwork::Unreadable), "{text}");
        }
        let host_bits = "10.0.0.7/8".parse::<ProxyNetwork>().unwrap_err().to_string();
        assert_eq!(host_bits, "has bits after the prefix: write 10.0.0.0/8");
    }
}
