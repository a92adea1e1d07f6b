//! All Redis keys.
//!
//! The sharding rule: keys that one script touches share a hash tag. Everything about a sale's home shard is tagged
//! `{sale}`, everything about its shard k > 0 `{sale.k}`. Locks and cached documents are alone under
//! their own names. No other keys exist.

use crate::domain::ids::{DocId, SaleId, Shard};

/// Makes keys under one prefix, so that several systems can share a server.
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: String,
}

/// The keys of one shard of a sale.
#[derive(Debug)]
pub struct SaleKeys {
    /// Hash: terms, state, epoch and stock.
    pub sale: String,
    /// Hash: order id to its ticket.
    pub tickets: String,
    /// Hash: buyer to units held and newest order.
    pub buyers: String,
    /// Sorted set: orders whose purchase row is not known to be committed, by time.
    pub unconfirmed: String,
    /// Set: ids of the waves that this epoch's stock contains.
    pub waves: String,
    /// List: everyone who ever held a ticket, appended to only.
    pub holders: String,
    /// Hashes: counts in the current window of each limit.
    pub limits: [String; 3],
}

impl Keys {
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    pub fn sale(&self, sale: SaleId, shard: Shard) -> SaleKeys {
        let tag = match shard {
            Shard::HOME => format!("{}{{{sale}}}", self.prefix),
            Shard(k) => format!("{}{{{sale}.{k}}}", self.prefix),
        };
        let key = |name: &str| format!("{tag}:{name}");
        SaleKeys {
            sale: key("sale"),
            tickets: key("tickets"),
            buyers: key("buyers"),
            unconfirmed: key("unconfirmed"),
            waves: key("waves"),
            holders: key("holders"),
            limits: ["limit:buyer", "limit:address", "limit:sale"].map(key),
        }
    }

    pub fn doc(&self, id: DocId) -> String {
        format!("{}doc:{{{id}}}", self.prefix)
    }

    pub fn lock(&self, name: &str) -> String {
        format!("{}lock:{{{name}}}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_shard_share_its_tag() {
        let keys = Keys::new("sk:").sale(SaleId::from_db(42), Shard(3));
        for key in
            [&keys.sale, &keys.tickets, &keys.buyers, &keys.unconfirmed, &keys.holders].into_iter().chain(&keys.limits)
        {
            assert!(key.starts_with("sk:{42.3}:"), "{key}");
        }
        assert_eq!(Keys::new("sk:").sale(SaleId::from_db(42), Shard::HOME).sale, "sk:{42}:sale");
    }
}
