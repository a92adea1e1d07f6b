//! Writes the calls of reserve.lua. Values of all buyers are sent once, and default values are not sent.

use redis::{Cmd, RedisWrite};
use uuid::Uuid;

use crate::keys::{SALE_KEYS, SaleKeys};
use seckill_domain::admission::{Limits, ReserveRequest, Window};
use seckill_domain::captcha::{Pass, PassCheck};
use seckill_domain::ids::{Epoch, Units};

pub(super) struct CallArguments {
    /// The known epoch and number of holders.
    pub(crate) known: (Epoch, usize),
    /// Whether to return the other holders although units are left.
    pub(crate) learn: bool,
    pub(crate) now_ms: i64,
    pub(crate) sold_out_ms: u64,
    pub(crate) lapses: Window,
    pub(crate) limits: Limits,
    /// The lender of each buyer if this shard has too few units (-1: none). Empty in a sale with one shard.
    pub(crate) lenders: Vec<i16>,
}

/// Stands for no pass.
const LONG_EXPIRED: Pass = Pass { expires_at_ms: 0, spent_before: 0 };
/// About the size of the arguments of a call, and of one buyer.
const CALL_BYTES: usize = 400;
const BUYER_BYTES: usize = 80;

/// The call that asks for the units of these requests, at most 1000.
pub(super) fn reserve_call(hash: &str, keys: &SaleKeys, terms: &CallArguments, requests: &[ReserveRequest]) -> Cmd {
    let parts = parts_of(terms, requests);
    let n = requests.len();
    let mut call = Cmd::with_capacity(32 + n * (2 + parts.len()), CALL_BYTES + n * BUYER_BYTES);
    call.arg("EVALSHA").arg(hash).arg(SALE_KEYS + keys.limits.len());
    call.arg(&keys.lasting()).arg(&keys.limits);
    call.arg(n).arg(terms.known.0.0).arg(terms.known.1).arg(terms.sold_out_ms).arg(terms.now_ms);
    call.arg(u8::from(terms.learn)).arg(terms.lapses.max).arg(terms.lapses.window_ms);
    call.arg(&parts);
    let mut id = Uuid::encode_buffer();
    for request in requests {
        call.arg(&*request.order.0.hyphenated().encode_lower(&mut id));
    }
    for request in requests {
        call.arg(request.user.as_str());
    }
    for part in parts.chars() {
        write_part(part, &mut call, terms, requests);
    }
    call
}

/// The letters of the parts without default values, in the order in which they are sent. The header of reserve.lua explains them.
fn parts_of(terms: &CallArguments, requests: &[ReserveRequest]) -> String {
    let any = |is: fn(&ReserveRequest) -> bool| requests.iter().any(is);
    let parts = [
        ('b', terms.limits.buyer.is_limit()),
        ('a', terms.limits.address.is_limit()),
        ('s', terms.limits.sale.is_limit()),
        ('u', any(|request| request.units != Units::ONE)),
        ('f', any(|request| flags(request) != 0)),
        // Under one version of a sale's terms, all of its buyers need a pass, or none.
        ('p', any(|request| request.pass != PassCheck::NotAsked)),
        ('l', !terms.lenders.is_empty()),
        ('v', terms_version(requests) != 0),
    ];
    parts.into_iter().filter(|(_, is_sent)| *is_sent).map(|(letter, _)| letter).collect()
}

fn write_part(part: char, call: &mut Cmd, terms: &CallArguments, requests: &[ReserveRequest]) {
    let Limits { buyer, address, sale } = &terms.limits;
    match part {
        'b' => _ = call.arg(buyer.max).arg(buyer.window_ms),
        'a' => {
            call.arg(address.max).arg(address.window_ms);
            requests.iter().for_each(|request| call.write_arg_fmt(request.address));
        }
        's' => _ = call.arg(sale.max).arg(sale.window_ms),
        'u' => requests.iter().for_each(|request| _ = call.arg(request.units.get())),
        'f' => requests.iter().for_each(|request| _ = call.arg(flags(request))),
        'p' => {
            requests.iter().for_each(|request| _ = call.arg(pass(request).expires_at_ms));
            requests.iter().for_each(|request| _ = call.arg(pass(request).spent_before));
        }
        'v' => _ = call.arg(terms_version(requests)),
        'l' => terms.lenders.iter().for_each(|lender| _ = call.arg(*lender)),
        other => unreachable!("no part has the letter {other}"),
    }
}

/// Of requests from before and after a change, the older version counts: the call is refused as a whole, and its callers come again.
fn terms_version(requests: &[ReserveRequest]) -> i32 {
    requests.iter().map(|request| request.terms_version).min().unwrap_or(0)
}

fn flags(request: &ReserveRequest) -> u8 {
    u8::from(request.wrong_key) + 2 * u8::from(request.level_too_low)
}

fn pass(request: &ReserveRequest) -> Pass {
    match &request.pass {
        PassCheck::Asked(Some(pass)) => **pass,
        PassCheck::Asked(None) | PassCheck::NotAsked => LONG_EXPIRED,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use redis::Arg;

    use super::*;
    use crate::keys::Keys;
    use seckill_domain::client_address::ClientAddress;
    use seckill_domain::ids::{OrderId, SaleId, Shard, UserId};
    use seckill_domain::shards::{SaleShards, ShardCount};

    const ID: &str = "00000000-0000-0000-0000-000000000000";

    fn request(user: &str) -> ReserveRequest {
        let letter = user.as_bytes()[0];
        ReserveRequest {
            order: OrderId(Uuid::nil()),
            user: UserId::parse(user).unwrap(),
            address: ClientAddress::from(IpAddr::from([10, 0, 0, letter])),
            units: Units::ONE,
            terms_version: 0,
            wrong_key: false,
            level_too_low: false,
            pass: PassCheck::NotAsked,
            trace: None,
        }
    }

    /// What the script gets as ARGV.
    fn arguments(requests: &[ReserveRequest]) -> String {
        const KEYS_SENT: usize = 14;
        let [limit, lapses] = [-1, 2].map(|max| Window { max, window_ms: 600_000 });
        let (known, limits) = ((Epoch(7), 3), Limits { buyer: limit, address: limit, sale: limit });
        let terms =
            CallArguments { known, learn: false, now_ms: 1000, sold_out_ms: 500, lapses, limits, lenders: Vec::new() };
        let of = SaleShards { sale: SaleId::from_db(42), count: ShardCount::ONE, asks_pass: false };
        let keys = Keys::new("sk:").sale(of, Shard::FIRST);
        let call = reserve_call("hash", &keys, &terms, requests);
        let text = |arg: Arg<&[u8]>| match arg {
            Arg::Simple(text) => String::from_utf8(text.to_vec()).unwrap(),
            _ => panic!("a cursor"),
        };
        call.args_iter().map(text).skip(KEYS_SENT).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_one_buyer_has_beside_the_others_is_a_column() {
        let mut requests = [request("ann"), request("ben"), request("eve")];
        requests[1].units = Units::parse(3).unwrap();
        requests[2].wrong_key = true;
        (requests[0].wrong_key, requests[0].level_too_low) = (true, true);
        requests[0].pass = PassCheck::Asked(None);
        requests[1].pass = PassCheck::Asked(Some(Box::new(Pass { expires_at_ms: 2000, spent_before: 1 })));
        let columns = "1 3 1 3 0 1 0 2000 0 0 1 0";
        let sent = format!("3 7 3 500 1000 0 2 600000 ufp {ID} {ID} {ID} ann ben eve {columns}");
        assert_eq!(arguments(&requests), sent);
    }
}
