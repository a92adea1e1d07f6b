//! The key set that an issuer publishes (RFC 7517). A key that we cannot use is skipped, because issuers also publish keys for encryption, and
//! keys of new kinds.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use seckill_domain::json_object;
use serde::Deserialize;
use serde_json::Value;

use crate::key::{Algorithm, Key, RSA};

/// More would be read in vain: issuers have two or three.
const KEYS_MAX: usize = 100;

#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

/// One key, as RFC 7518 (6.2, 6.3) and RFC 8037 describe it.
#[derive(Deserialize)]
struct PublishedKey {
    kty: String,
    kid: Option<String>,
    r#use: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    /// The private part. Its owner has published it, so that anybody signs with the key.
    d: Option<Value>,
}

/// The keys that verify signatures. `None`: the text is no key set.
pub(crate) fn read(text: &[u8]) -> Option<Vec<Key>> {
    let Document { keys } = json_object::from_slice(text).ok()?;
    let keys = keys.into_iter().take(KEYS_MAX).filter_map(|key| serde_json::from_value::<PublishedKey>(key).ok());
    Some(keys.filter_map(|key| key.usable()).collect())
}

impl PublishedKey {
    fn usable(&self) -> Option<Key> {
        let is_for_signatures = self.r#use.as_ref().is_none_or(|usage| usage == "sig")
            && self.key_ops.as_ref().is_none_or(|operations| operations.iter().any(|operation| operation == "verify"));
        if !is_for_signatures || self.d.is_some() {
            return None;
        }
        // `oct` is a secret, which nobody publishes.
        let (possible, bytes) = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => (RSA, rsa(&bytes(self.n.as_ref())?, &bytes(self.e.as_ref())?)?),
            ("EC", Some("P-256")) => (&[Algorithm::ES256][..], self.point(32)?),
            ("EC", Some("P-384")) => (&[Algorithm::ES384][..], self.point(48)?),
            ("OKP", Some("Ed25519")) => (&[Algorithm::EdDsa][..], coordinate(self.x.as_ref(), 32)?),
            _ => return None,
        };
        let algorithms = match &self.alg {
            None => possible,
            Some(named) => std::slice::from_ref(possible.iter().find(|possible| named.parse() == Ok(**possible))?),
        };
        Some(Key::public(self.kid.as_deref(), algorithms, bytes))
    }

    /// A point in the uncompressed form of SEC 1.
    fn point(&self, length: usize) -> Option<Vec<u8>> {
        Some([vec![4], coordinate(self.x.as_ref(), length)?, coordinate(self.y.as_ref(), length)?].concat())
    }
}

fn bytes(text: Option<&String>) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(text?).ok()
}

fn coordinate(text: Option<&String>, length: usize) -> Option<Vec<u8>> {
    bytes(text).filter(|bytes| bytes.len() == length)
}

/// A key of 2048 to 8192 bits as PKCS#1 has it: a sequence of two integers.
fn rsa(modulus: &[u8], exponent: &[u8]) -> Option<Vec<u8>> {
    let [modulus, exponent] = [modulus, exponent].map(|bytes| {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        &bytes[zeros..]
    });
    let integer = |bytes: &[u8]| {
        // Without it, a first bit of 1 would mean a negative number.
        let sign = if bytes.first().is_some_and(|first| *first >= 0x80) { &[0][..] } else { &[] };
        der(2, &[sign, bytes].concat())
    };
    let fits = (256..=1024).contains(&modulus.len()) && (1..=4).contains(&exponent.len());
    fits.then(|| der(0x30, &[integer(modulus), integer(exponent)].concat()))
}

fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).unwrap_or(u16::MAX).to_be_bytes();
    let length = match (high, low) {
        (0, 0..0x80) => vec![low],
        (0, _) => vec![0x81, low],
        _ => vec![0x82, high, low],
    };
    [&[tag], &length[..], content].concat()
}
