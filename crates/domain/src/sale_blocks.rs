//! Who may not buy in a sale.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::client_address::ClientAddress;
use super::ids::{Invalid, UserId};

/// Blocks of one sale at most: each instance keeps them all.
pub const BLOCKS_MAX: i64 = 1_000;

/// The buyers and network addresses that are blocked in a sale.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaleBlocks {
    pub buyers: BTreeSet<String>,
    /// As `ClientAddress` writes them.
    pub addresses: BTreeSet<String>,
}

impl SaleBlocks {
    pub fn is_blocked(&self, user: &UserId, address: ClientAddress) -> bool {
        self.buyers.contains(user.as_str())
            || !self.addresses.is_empty() && self.addresses.contains(&address.to_string())
    }
}

/// A buyer or a network address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shopper {
    Buyer(UserId),
    Address(ClientAddress),
}

impl Shopper {
    /// Reads one of the two.
    pub fn parse(buyer: Option<&str>, address: Option<&str>) -> Result<Self, Invalid> {
        match (buyer, address) {
            (Some(buyer), None) => {
                Ok(Self::Buyer(UserId::parse(buyer).map_err(|wrong| Invalid { field: "buyer", ..wrong })?))
            }
            (None, Some(address)) => {
                let wrong =
                    || Invalid::new("address", "must be an IPv4 address, an IPv6 address, or an IPv6 network with /64");
                ClientAddress::parse(address).map(Self::Address).ok_or_else(wrong)
            }
            _ => Err(Invalid::new("buyer", "or address must be given, and not both")),
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Self::Buyer(_) => "buyer",
            Self::Address(_) => "address",
        }
    }

    pub fn name(&self) -> String {
        match self {
            Self::Buyer(user) => user.as_str().to_owned(),
            Self::Address(address) => address.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_of_the_buyer_or_of_the_address_in_any_spelling() {
        let name = |buyer, address| Shopper::parse(buyer, address).map(|shopper| shopper.name()).ok();
        let blocks = SaleBlocks {
            buyers: [name(Some("ann"), None).unwrap()].into(),
            addresses: [name(None, Some("2001:db8:1:2::7")).unwrap(), name(None, Some("203.0.113.9")).unwrap()].into(),
        };
        for (user, address, is_blocked) in [
            ("ann", "198.51.100.1", true),
            ("Ann", "198.51.100.1", false),
            ("bob", "203.0.113.9", true),
            ("bob", "::ffff:203.0.113.9", true),
            ("bob", "203.0.113.90", false),
            ("bob", "2001:db8:1:2:ffff::1", true),
            ("bob", "2001:db8:1:3::7", false),
        ] {
            let address = ClientAddress::parse(address).unwrap();
            assert_eq!(blocks.is_blocked(&UserId::parse(user).unwrap(), address), is_blocked, "{user} {address}");
        }
        for (buyer, address) in
            [(None, None), (Some("ann"), Some("203.0.113.9")), (Some(""), None), (None, Some("ann")), (None, Some(""))]
        {
            assert_eq!(name(buyer, address), None, "{buyer:?} {address:?}");
        }
    }
}
