//! All Redis keys.
//!
//! The sharding rule: keys that one script touches share a hash tag. Everything about a sale with one shard is tagged
//! `{sale}`, everything about shard k of a sale with more `{sale.k.j}` (`domain::shards`). Limiters of one application share
//! `{flow:app}`, so that one script can check several; each key of a spread policy has a tag of its own. Each lock, each cached
//! document and each policy's counts have a tag of their own. There are no other keys.

use crate::domain::ids::{DocId, Shard};
use crate::domain::limiter::{AlgorithmKind, SlotKey};
use crate::domain::shards::SaleShards;

/// Makes keys with one prefix, so that several systems can share a server.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    prefix: String,
}

/// The keys of one shard of a sale.
#[derive(Debug)]
pub(super) struct SaleKeys {
    /// Hash: terms, state, epoch and stock.
    pub sale: String,
    /// Hash: order id to ticket.
    pub tickets: String,
    /// Hash: buyer to units held and newest order.
    pub buyers: String,
    /// Sorted set: orders whose record is not known to be committed, by time.
    pub unconfirmed: String,
    /// Set: ids of the waves that this epoch's stock contains.
    pub waves: String,
    /// List: the buyers of all tickets, append-only.
    pub holders: String,
    /// Hash: buyer to passes spent, where the sale asks for them (protocol, rule 18).
    pub passes: String,
    /// Hash: buyer to the order of the open loan, in a sale with shards (protocol, rule 15).
    pub loans: String,
    /// Hashes: counts in the current window of each `Limit`.
    pub limits: [String; 3],
}

impl SaleKeys {
    /// The keys that a refill creates and that always exist, in the order of sale_begin.lua.
    pub fn lasting(&self) -> [&str; SALE_KEYS] {
        [
            &self.sale,
            &self.tickets,
            &self.buyers,
            &self.unconfirmed,
            &self.holders,
            &self.waves,
            &self.passes,
            &self.loans,
        ]
    }
}

/// The number of lasting keys of a shard.
pub(super) const SALE_KEYS: usize = 8;

/// The keys of a lock.
#[derive(Debug)]
pub(super) struct LockKeys {
    /// String: the random id of the holder.
    pub lock: String,
    /// String: the last fencing token.
    pub fence: String,
}

impl Keys {
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    pub fn sale(&self, of: SaleShards, shard: Shard) -> SaleKeys {
        let tag = self.tag(of, shard);
        let key = |name: &str| format!("{tag}:{name}");
        SaleKeys {
            sale: key("sale"),
            tickets: key("tickets"),
            buyers: key("buyers"),
            unconfirmed: key("unconfirmed"),
            waves: key("waves"),
            holders: key("holders"),
            passes: key("passes"),
            loans: key("loans"),
            limits: ["limit:buyer", "limit:address", "limit:sale"].map(key),
        }
    }

    /// String: the mark of a challenge of this sale that was answered. It expires by itself.
    pub fn challenge(&self, of: SaleShards, home: Shard, serial: &str) -> String {
        format!("{}:challenge:{serial}", self.tag(of, home))
    }

    fn tag(&self, of: SaleShards, shard: Shard) -> String {
        format!("{}{{{}}}", self.prefix, of.tag(shard))
    }

    pub fn doc(&self, id: DocId) -> String {
        format!("{}doc:{{{id}}}", self.prefix)
    }

    /// The part of a slot's keys that has the hash tag. One script can check the slots that share it.
    pub fn slot_tag(&self, slot: &SlotKey) -> String {
        let (app, prefix) = (slot.app(), &self.prefix);
        if slot.is_spread() {
            format!("{prefix}{{flow:{app}:{}:{}}}", slot.policy(), slot.key())
        } else {
            format!("{prefix}{{flow:{app}}}")
        }
    }

    /// The state of a limiter. Each algorithm has a key of its own, because their states differ.
    pub fn limiter(&self, slot: &SlotKey, kind: AlgorithmKind) -> String {
        self.slot(slot, kind.as_str())
    }

    /// The line of waiters at a limiter, the permits of each, and when each has asked last.
    pub fn line(&self, slot: &SlotKey) -> [String; 3] {
        ["places", "place-permits", "place-asked"].map(|name| self.slot(slot, name))
    }

    fn slot(&self, slot: &SlotKey, name: &str) -> String {
        format!("{}:{}:{name}:{}", self.slot_tag(slot), slot.policy(), slot.key())
    }

    /// Hash: the counts of one policy in one minute since the epoch, by the second.
    pub fn policy_counts(&self, policy: i64, minute: i64) -> String {
        format!("{}figures:{{{policy}}}:{minute}", self.prefix)
    }

    /// A name may have a tag of its own, so that the lock lies where that tag's keys lie.
    pub fn lock(&self, name: &str) -> LockKeys {
        let prefix = &self.prefix;
        let lock = if name.contains('{') { format!("{prefix}lock:{name}") } else { format!("{prefix}lock:{{{name}}}") };
        LockKeys { fence: format!("{lock}:fence"), lock }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::SaleId;
    use crate::domain::shards::ShardCount;

    #[test]
    fn the_keys_of_a_shard_share_its_tag() {
        let of = |count| SaleShards {
            sale: SaleId::from_db(42),
            count: ShardCount::parse(count).unwrap(),
            asks_pass: false,
        };
        let keys = Keys::new("sk:").sale(of(4), Shard(3));
        let tag = format!("sk:{{{}}}:", of(4).tag(Shard(3)));
        for key in keys.lasting().into_iter().chain(keys.limits.iter().map(String::as_str)) {
            assert!(key.starts_with("sk:{42.3.") && key.starts_with(&tag), "{key}");
        }
        assert!(
            Keys::new("sk:").sale(of(4), Shard::FIRST).sale.starts_with("sk:{42.0."),
            "no key under the tag of the sale"
        );
        assert_eq!(Keys::new("sk:").sale(of(1), Shard::FIRST).sale, "sk:{42}:sale");
        assert_eq!(Keys::new("sk:").challenge(of(1), Shard::FIRST, "0f"), "sk:{42}:challenge:0f");
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
        assert_eq!(
            keys.line(&slot("", false)),
            ["sk:{flow:shop}:pay:places:", "sk:{flow:shop}:pay:place-permits:", "sk:{flow:shop}:pay:place-asked:"]
        );
    }
}
