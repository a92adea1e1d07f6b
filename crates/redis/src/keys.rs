//! All Redis keys.
//!
//! The sharding rule: keys that one script touches share a hash tag. A sale with one shard has the tag `{sale}`, shard k of a sale with
//! more has `{sale.k.j}` (`domain::shards`). The limiters of one application share `{flow:app}`, so one script can check several. Each
//! key of a spread policy, each lock, each cached document and each policy's counts have their own tags.

use seckill_domain::ids::{DocId, Shard};
use seckill_domain::limiter::{AlgorithmKind, SlotKey};
use seckill_domain::shards::SaleShards;

#[derive(Debug, Clone)]
pub(super) struct Keys {
    prefix: String,
}

#[derive(Debug)]
pub(super) struct SaleKeys {
    /// Hash: terms, state, epoch and stock.
    pub(crate) sale: String,
    /// Hash: order id to ticket.
    pub(crate) tickets: String,
    /// Hash: buyer to units held and newest order.
    pub(crate) buyers: String,
    /// Sorted set: orders without a confirmed record, by time.
    pub(crate) unconfirmed: String,
    /// Set: ids of the waves in this epoch's stock.
    pub(crate) waves: String,
    /// List: the buyers of all tickets, append-only.
    pub(crate) holders: String,
    /// Hash: buyer to passes spent (protocol, rule 18).
    pub(crate) passes: String,
    /// Hash: buyer to the order of the open loan (protocol, rule 15).
    pub(crate) loans: String,
    /// Hashes: counts in the current window of each `Limit`.
    pub(crate) limits: [String; 3],
}

impl SaleKeys {
    /// The keys that exist from a refill on, in the order of sale_begin.lua.
    pub(crate) fn lasting(&self) -> [&str; SALE_KEYS] {
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

pub(super) const SALE_KEYS: usize = 8;

#[derive(Debug)]
pub(super) struct LockKeys {
    /// String: the random id of the holder.
    pub(crate) lock: String,
    /// String: the last fencing token.
    pub(crate) fence: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    pub(crate) fn sale(&self, of: SaleShards, shard: Shard) -> SaleKeys {
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

    /// String: the mark of an answered challenge. It expires by itself.
    pub(crate) fn challenge(&self, of: SaleShards, home: Shard, serial: &str) -> String {
        format!("{}:challenge:{serial}", self.tag(of, home))
    }

    fn tag(&self, of: SaleShards, shard: Shard) -> String {
        format!("{}{{{}}}", self.prefix, of.tag(shard))
    }

    pub(crate) fn doc(&self, id: DocId) -> String {
        format!("{}doc:{{{id}}}", self.prefix)
    }

    /// The beginning of a slot's keys, with the hash tag. One script can check slots with the same tag.
    pub(crate) fn slot_tag(&self, slot: &SlotKey) -> String {
        let (app, prefix) = (slot.app(), &self.prefix);
        if slot.is_spread() {
            format!("{prefix}{{flow:{app}:{}:{}}}", slot.policy(), slot.key())
        } else {
            format!("{prefix}{{flow:{app}}}")
        }
    }

    /// The state of a limiter. Each algorithm has its own key, because their states differ.
    pub(crate) fn limiter(&self, slot: &SlotKey, kind: AlgorithmKind) -> String {
        self.slot(slot, kind.as_str())
    }

    /// The line of waiters at a limiter, their permits, and when each has asked last.
    pub(crate) fn line(&self, slot: &SlotKey) -> [String; 3] {
        ["places", "place-permits", "place-asked"].map(|name| self.slot(slot, name))
    }

    fn slot(&self, slot: &SlotKey, name: &str) -> String {
        format!("{}:{}:{name}:{}", self.slot_tag(slot), slot.policy(), slot.key())
    }

    /// Hash: the counts of one policy in one minute, by the second.
    pub(crate) fn policy_counts(&self, policy: i64, minute: i64) -> String {
        format!("{}figures:{{{policy}}}:{minute}", self.prefix)
    }

    /// A name may have its own tag: then the lock lies with that tag's keys.
    pub(crate) fn lock(&self, name: &str) -> LockKeys {
        let prefix = &self.prefix;
        let lock = if name.contains('{') { format!("{prefix}lock:{name}") } else { format!("{prefix}lock:{{{name}}}") };
        LockKeys { fence: format!("{lock}:fence"), lock }
    }
}
