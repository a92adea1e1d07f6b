//! Writes the calls of reserve.lua. Values of all buyers are sent once, and default values are not sent.

use redis::{Cmd, RedisWrite};
use uuid::Uuid;

use crate::domain::admission::{Limits, ReserveRequest, Window};
use crate::domain::captcha::{Pass, PassCheck};
use crate::domain::ids::{Epoch, Units};
use crate::gate::keys::{SALE_KEYS, SaleKeys};

pub(super) struct CallTerms {
    /// The known epoch and number of holders.
    pub known: (Epoch, usize),
    /// Whether to return the other holders although units are left.
    pub learn: bool,
    pub now_ms: i64,
    pub sold_out_ms: u64,
    pub lapses: Window,
    pub limits: Limits,
    /// The lender of each buyer if this shard has too few units (-1: none). Empty in a sale with one shard.
    pub lenders: Vec<i16>,
}

/// Stands for no pass.
const LONG_EXPIRED: Pass = Pass { expires_at_ms: 0, spent_before: 0 };
/// About the size of the arguments of a call, and of one buyer.
const CALL_BYTES: usize = 400;
const BUYER_BYTES: usize = 80;

/// The call that asks for the units of these requests, at most 1000.
pub(super) fn reserve_call(hash: &str, keys: &SaleKeys, terms: &CallTerms, requests: &[ReserveRequest]) -> Cmd {
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
fn parts_of(terms: &CallTerms, requests: &[ReserveRequest]) -> String {
    let any = |is: fn(&ReserveRequest) -> bool| requests.iter().any(is);
    let parts = [
        ('b', terms.limits.buyer.is_limit()),
        ('a', terms.limits.address.is_limit()),
        ('s', terms.limits.sale.is_limit()),
        ('u', any(|request| request.units != Units::ONE)),
        ('f', any(|request| flags(request) != 0)),
        // A sale's terms do not change: all of its buyers need a pass, or none.
        ('p', any(|request| request.pass != PassCheck::NotAsked)),
        ('l', !terms.lenders.is_empty()),
    ];
    parts.into_iter().filter(|(_, is_sent)| *is_sent).map(|(letter, _)| letter).collect()
}

fn write_part(part: char, call: &mut Cmd, terms: &CallTerms, requests: &[ReserveRequest]) {
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
        _ => terms.lenders.iter().for_each(|lender| _ = call.arg(*lender)),
    }
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
