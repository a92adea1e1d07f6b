//! The fast check of tokens that are signed with a shared secret (HS256).

use std::sync::OnceLock;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;

/// Checks the signature of a token whose header has already passed the full check. Every token of a crowd is checked on the path of
/// the purchase. Parsing the same header again would double the time.
pub(super) struct SharedSecret {
    key: hmac::Key,
    /// Headers of tokens that have passed the full check. An issuer uses one header until it names a new key.
    headers: [OnceLock<Box<str>>; 4],
}

impl SharedSecret {
    pub(super) fn new(secret: &str) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), headers: Default::default() }
    }

    /// Whether the token has a known header and the right signature.
    pub(super) fn has_signed(&self, header: &str, message: &str, signature: &str) -> bool {
        let is_known = self.headers.iter().map_while(OnceLock::get).any(|known| **known == *header);
        let mut bytes = [0; 48];
        is_known
            && BASE64_URL_SAFE_NO_PAD
                .decode_slice(signature, &mut bytes)
                .is_ok_and(|length| hmac::verify(&self.key, message.as_bytes(), &bytes[..length]).is_ok())
    }

    /// Remembers the header of a token that has passed the full check.
    pub(super) fn remember(&self, header: &str) {
        for known in &self.headers {
            if **known.get_or_init(|| header.into()) == *header {
                return;
            }
        }
    }
}
