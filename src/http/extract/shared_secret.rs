//! The quick check of tokens that are signed by a shared secret.

use std::sync::OnceLock;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;

/// Checks the signatures of tokens that are signed by a shared secret (HS256) and have a header that has been checked before: every
/// token of a crowd is checked on the path of the purchase, and reading the same header again would take as long as all the rest.
pub(super) struct SharedSecret {
    key: hmac::Key,
    /// Headers of tokens that have passed the whole check. An issuer has one, and another one when it names a new key.
    headers: [OnceLock<Box<str>>; 4],
}

impl SharedSecret {
    pub(super) fn new(secret: &str) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), headers: Default::default() }
    }

    /// Whether a token has a header that is known, and the right signature.
    pub(super) fn has_signed(&self, header: &str, message: &str, signature: &str) -> bool {
        let is_known = self.headers.iter().map_while(OnceLock::get).any(|known| **known == *header);
        let mut bytes = [0; 48];
        is_known
            && BASE64_URL_SAFE_NO_PAD
                .decode_slice(signature, &mut bytes)
                .is_ok_and(|length| hmac::verify(&self.key, message.as_bytes(), &bytes[..length]).is_ok())
    }

    /// Remembers the header of a token that has passed the whole check.
    pub(super) fn remember(&self, header: &str) {
        for known in &self.headers {
            if **known.get_or_init(|| header.into()) == *header {
                return;
            }
        }
    }
}
