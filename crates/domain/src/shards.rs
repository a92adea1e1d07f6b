//! The shards of a sale: a buyer's home, the order of lenders, the division of units, and the places of keys in a cluster (protocol, rule 15;
//! docs/scale.md). All versions and instances must decide alike, for ever.

use serde::{Deserialize, Serialize};

use super::ids::{Invalid, SaleId, Shard, Units};
use super::stock::Stock;

/// The number of shards of a sale: 1 to 64. It never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardCount(u8);

impl ShardCount {
    pub const ONE: Self = Self(1);
    const MAX: u8 = 64;

    pub fn parse(n: u64) -> Result<Self, Invalid> {
        match u8::try_from(n) {
            Ok(n) if (1..=Self::MAX).contains(&n) => Ok(Self(n)),
            _ => Err(Invalid::new("shards", "must be 1 to 64")),
        }
    }

    pub const fn get(self) -> u8 {
        self.0
    }

    pub fn is_one(self) -> bool {
        self == Self::ONE
    }

    pub fn all(self) -> impl DoubleEndedIterator<Item = Shard> + Clone {
        (0..i16::from(self.0)).map(Shard)
    }

    /// A shard's part of a stock or wave. Units are dealt out in lots of one buyer's limit, so that most buyers find enough units at one
    /// shard. A rest smaller than a lot goes to the next shard.
    pub fn part(self, units: u64, lot: Units, shard: Shard) -> u64 {
        let (lot, shards, place) = (u64::from(lot.get()), u64::from(self.0), u64::from(shard.0.unsigned_abs()));
        let (lots, rest) = (units / lot, units % lot);
        let more = u64::from(place < lots % shards);
        (lots / shards + more) * lot + if place == lots % shards { rest } else { 0 }
    }

    pub fn part_of(self, stock: Stock, lot: Units, shard: Shard) -> Stock {
        match stock {
            Stock::Unlimited => Stock::Unlimited,
            Stock::Units(units) => Stock::Units(self.part(units, lot, shard)),
        }
    }
}

impl Default for ShardCount {
    fn default() -> Self {
        Self::ONE
    }
}

/// A sale, with the fixed terms that decide its keys in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaleShards {
    pub sale: SaleId,
    pub count: ShardCount,
    /// Whether buyers need a pass (rule 18).
    pub asks_pass: bool,
}

impl SaleShards {
    /// The shard that alone judges and remembers this buyer.
    pub fn home(&self, user: &str) -> Shard {
        if self.count.is_one() {
            return Shard::FIRST;
        }
        self.home_of(self.hash(user))
    }

    fn home_of(&self, hash: u64) -> Shard {
        let scaled = u128::from(hash) * u128::from(self.count.0);
        Shard(i16::try_from(scaled >> 64).unwrap_or(0))
    }

    /// The shard that this buyer asks next to lend. Buyers of one home ask in different orders.
    pub fn lender(&self, user: &str, skip: impl Fn(Shard) -> bool) -> Option<Shard> {
        let hash = self.hash(user);
        let home = self.home_of(hash);
        let others = self.count.all().filter(|shard| *shard != home && !skip(*shard));
        others.max_by_key(|shard| mixed(hash ^ u64::from(shard.0.unsigned_abs() + 1).wrapping_mul(GOLDEN)))
    }

    fn hash(&self, user: &str) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.sale.get().to_be_bytes()).update(user.as_bytes());
        let mut bytes = [0; 8];
        hasher.finalize_xof().fill(&mut bytes);
        u64::from_be_bytes(bytes)
    }

    /// The hash tag of a shard's keys. With one shard it is the sale's number. With more, it is number, shard, and the smallest number that
    /// moves the tag into the shard's part of the cluster's ring, so that shards lie evenly on its masters.
    pub fn tag(&self, shard: Shard) -> String {
        let sale = self.sale;
        if self.count.is_one() {
            return sale.to_string();
        }
        let part = shard.0.unsigned_abs().reverse_bits() >> (16 - PART_BITS);
        let begins = slot(&sale.to_string()) + part * (SLOTS >> PART_BITS);
        let beginning = format!("{sale}.{}.", shard.0);
        let crc_of_beginning = crc(0, beginning.bytes());
        let is_there = |j: &u32| {
            let slot = crc(crc_of_beginning, digits(*j)) % SLOTS;
            slot.wrapping_sub(begins) % SLOTS < SLOTS >> PART_BITS
        };
        let j = (0..).find(is_there).unwrap_or_default();
        format!("{beginning}{j}")
    }
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
/// The slots of a Redis Cluster, and the bits of a shard's number, which are reversed to find its part of the slots.
const SLOTS: u16 = 16_384;
const PART_BITS: u16 = 6;

/// The finalizer of SplitMix64: every bit of the result depends on every bit of the number.
const fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The slot of a key in a Redis Cluster: that of its hash tag, or of the whole key.
pub fn slot_of_key(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    slot(tag.filter(|tag| !tag.is_empty()).unwrap_or(key))
}

fn slot(tag: &str) -> u16 {
    crc(0, tag.bytes()) % SLOTS
}

/// CRC16 (XMODEM) of a text that begins with one whose CRC16 is known.
fn crc(of_beginning: u16, rest: impl Iterator<Item = u8>) -> u16 {
    let byte = |crc: u16, byte: u8| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    };
    rest.fold(of_beginning, byte)
}

/// The decimal digits of a number, without an allocation: a search tries hundreds of tags.
fn digits(number: u32) -> impl Iterator<Item = u8> {
    let count = number.checked_ilog10().unwrap_or(0);
    (0..=count).rev().map(move |place| b'0' + (number / 10_u32.pow(place) % 10) as u8)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn shards(sale: i64, count: u64) -> SaleShards {
        SaleShards { sale: SaleId::from_db(sale), count: ShardCount::parse(count).unwrap(), asks_pass: false }
    }

    /// A version that decided otherwise would let a buyer buy twice.
    #[test]
    fn homes_and_lenders_never_change() {
        let homes = |count| ["ann", "ben", "eve", "u1", "u2", "u3"].map(|user| shards(42, count).home(user).0);
        assert_eq!(homes(1), [0; 6]);
        // Computed by another program, as are the lenders.
        assert_eq!(homes(8), [0, 3, 7, 4, 0, 6]);
        let mut order = Vec::new();
        while let Some(next) = shards(42, 8).lender("ann", |shard| order.contains(&shard.0)) {
            order.push(next.0);
        }
        assert_eq!(order, [5, 2, 4, 6, 7, 3, 1]);
        assert_eq!([0, 1, 2, 3].map(|k| shards(42, 4).tag(Shard(k))), ["42.0.24", "42.1.209", "42.2.69", "42.3.111"]);
    }

    #[test]
    fn one_shard_has_the_tag_of_the_sale() {
        assert_eq!(shards(42, 1).tag(Shard::FIRST), "42");
        assert_eq!(slot("123456789"), 0x31C3 % SLOTS, "the check value of CRC16/XMODEM");
    }

    #[test]
    fn the_first_shards_lie_evenly_on_the_ring() {
        for sale in [1, 42, 7_000_000] {
            let begins = slot(&sale.to_string());
            let place = |k| slot(&shards(sale, 64).tag(Shard(k))).wrapping_sub(begins) % SLOTS;
            for bits in 0..=6 {
                let arcs: BTreeSet<u16> = (0..1 << bits).map(|k| place(k) / (SLOTS >> bits)).collect();
                assert_eq!(arcs.len(), 1 << bits, "each of {} arcs has one of the first shards", 1 << bits);
            }
        }
    }

    #[test]
    fn buyers_live_evenly_and_spread_evenly_when_their_home_is_empty() {
        let of = shards(7, 8);
        let mut counts = [[0_u32; 8]; 8];
        for user in 0..8_000 {
            let user = format!("buyer-{user}");
            let (home, lender) = (of.home(&user), of.lender(&user, |_| false).unwrap());
            assert_ne!(home, lender);
            let place = |shard: Shard| usize::from(shard.0.unsigned_abs());
            counts[place(home)][place(lender)] += 1;
        }
        for (home, lenders) in counts.iter().enumerate() {
            assert!((850..1150).contains(&lenders.iter().sum::<u32>()), "{home}: {lenders:?}");
            let others = lenders.iter().enumerate().filter(|(lender, _)| *lender != home);
            assert!(others.clone().all(|(_, count)| (90..200).contains(count)), "{home}: {lenders:?}");
        }
    }

    proptest! {
        #[test]
        fn all_units_are_dealt_out_and_evenly(units in 0..10_000_u64, lot in 1..20_u64, count in 1..=64_u64) {
            let (count, lot) = (ShardCount::parse(count).unwrap(), Units::parse(lot).unwrap());
            let parts: Vec<u64> = count.all().map(|shard| count.part(units, lot, shard)).collect();
            prop_assert_eq!(parts.iter().sum::<u64>(), units);
            prop_assert!(parts.iter().max().unwrap() - parts.iter().min().unwrap() <= u64::from(lot.get()));
            let broken = parts.iter().filter(|part| *part % u64::from(lot.get()) != 0).count();
            prop_assert!(broken <= 1, "one part at most is not of whole lots");
        }

        #[test]
        fn each_lender_is_asked_once_and_never_the_home(user in "[a-z0-9]{1,20}", sale in 1..1000_i64, count in 1..=64_u64) {
            let of = shards(sale, count);
            let mut asked = vec![of.home(&user)];
            while let Some(next) = of.lender(&user, |shard| asked[1..].contains(&shard)) {
                prop_assert!(!asked.contains(&next));
                asked.push(next);
            }
            asked.sort();
            prop_assert_eq!(asked, of.count.all().collect::<Vec<_>>());
        }
    }
}
