//! All Redis keys.
//!
//! The sharding rule: keys that one script touches share a hash tag. Everything about a sale's home shard is tagged
//! `{sale}`, everything about its shard k > 0 `{sale.k}`. Limiters of one app share `{flow:app}`, so that several
//! dimensions can be checked at once; those of a spread policy have a tag a key. Locks and cached documents are alone
//! under their own names. No other keys exist.

use crate::domain::ids::{DocId, SaleId, Shard};
use crate::domain::limiter::{AlgorithmKind, SlotKey};

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

/// The keys of a lock.
#[derive(Debug)]
pub struct LockKeys {
    /// String: the holder's random id.
    pub lock: String,
    /// String: the last fencing token.
    pub fence: String,
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

    /// What two slots must share to meet in one script: the part of their keys with the hash tag.
    pub fn slot_tag(&self, slot: &SlotKey) -> String {
        let (app, prefix) = (slot.app(), &self.prefix);
        if slot.is_spread() {
            format!("{prefix}{{flow:{app}:{}:{}}}", slot.policy(), slot.key())
        } else {
            format!("{prefix}{{flow:{app}}}")
        }
    }

    /// A limiter's state. Each algorithm has a key of its own: their states are not each other's.
    pub fn limiter(&self, slot: &SlotKey, kind: AlgorithmKind) -> String {
        self.slot(slot, kind.as_str())
    }

    /// Who waits for a limiter, in order, and what is known of each.
    pub fn line(&self, slot: &SlotKey) -> [String; 2] {
        ["line", "waiters"].map(|name| self.slot(slot, name))
    }

    fn slot(&self, slot: &SlotKey, name: &str) -> String {
        format!("{}:{}:{name}:{}", self.slot_tag(slot), slot.policy(), slot.key())
    }

    /// Counts of one policy, by the second, in one minute since the epoch.
    pub fn figures(&self, policy: i64, minute: i64) -> String {
        format!("{}figures:{{{policy}}}:{minute}", self.prefix)
    }

    pub fn lock(&self, name: &str) -> LockKeys {
        let lock = format!("{}lock:{{{name}}}", self.prefix);
        LockKeys { fence: format!("{lock}:fence"), lock }
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

    #[test]
    fn slots_of_an_app_share_its_tag_and_spread_ones_do_not() {
        let keys = Keys::new("sk:");
        let slot = |key: &str, spread| SlotKey::new("shop", "pay", key, spread).unwrap();
        assert_eq!(
            keys.limiter(&slot("u}1", false), AlgorithmKind::TokenBucket),
            "sk:{flow:shop}:pay:token-bucket:u%7D1"
        );
        assert_eq!(
            keys.limiter(&slot("u1", true), AlgorithmKind::TokenBucket),
            "sk:{flow:shop:pay:u1}:pay:token-bucket:u1"
        );
        assert_eq!(keys.line(&slot("", false)), ["sk:{flow:shop}:pay:line:", "sk:{flow:shop}:pay:waiters:"]);
    }
}
