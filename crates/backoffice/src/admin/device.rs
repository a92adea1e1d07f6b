//! The token by which a browser is known again that has signed in to an account. It gives no right but one: its attempts to
//! sign in are counted apart from attempts of strangers. (OWASP, "Slow Down Online Guessing Attacks with Device Cookies".)

use seckill_domain::account::AccountName;

/// How long a browser is known after it last signed in.
pub const KNOWN_DAYS: i32 = 90;

const DAY_MS: i64 = 86_400_000;

/// Makes and verifies the tokens of browsers. They are signed and stored nowhere, so that an invented one costs nothing.
pub(super) struct DeviceTokens {
    secret: [u8; 32],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Device {
    pub(crate) id: String,
}

impl DeviceTokens {
    /// `secret` is the same at all instances; a key of its own is derived from it.
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        Self { secret: blake3::derive_key("seckill admin device 2026", secret) }
    }

    pub(super) fn issue(&self, account: &AccountName, device: Option<&Device>, now_ms: i64) -> String {
        let new = || uuid::Uuid::from_u128(rand::random()).simple().to_string();
        let id = device.map_or_else(new, |device| device.id.clone());
        format!("{now_ms}.{id}.{}", self.signature(account, now_ms, &id).to_hex())
    }

    pub(super) fn verify(&self, token: &str, account: &AccountName, now_ms: i64) -> Option<Device> {
        let mut parts = token.split('.');
        let [time, id, signature, None] = [parts.next(), parts.next(), parts.next(), parts.next()] else { return None };
        let (issued_ms, id, signature) = (time?.parse::<i64>().ok()?, id?, signature?);
        let fresh = issued_ms.checked_add(i64::from(KNOWN_DAYS) * DAY_MS).is_some_and(|ends_ms| now_ms < ends_ms);
        if !fresh || id.len() != 32 {
            return None;
        }
        // blake3 compares hashes in constant time.
        let signature = blake3::Hash::from_hex(signature).ok()?;
        (self.signature(account, issued_ms, id) == signature).then(|| Device { id: id.to_owned() })
    }

    fn signature(&self, account: &AccountName, issued_ms: i64, id: &str) -> blake3::Hash {
        // No part contains a space, so that two different triples never read the same.
        blake3::keyed_hash(&self.secret, format!("{account} {issued_ms} {id}").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_its_account_for_its_time_and_unchanged() {
        let (tokens, others) = (DeviceTokens::new(&[1; 32]), DeviceTokens::new(&[2; 32]));
        let name = |text| AccountName::parse(text, "name").unwrap();
        let (ann, bob, now_ms) = (name("ann"), name("bob"), 1_800_000_000_000);
        let token = tokens.issue(&ann, None, now_ms);
        let device = tokens.verify(&token, &ann, now_ms).unwrap();
        assert_eq!(tokens.verify(&tokens.issue(&ann, Some(&device), now_ms + 5), &ann, now_ms), Some(device));
        let end_ms = now_ms + i64::from(KNOWN_DAYS) * DAY_MS;
        assert!(tokens.verify(&token, &ann, end_ms - 1).is_some());
        assert_eq!(tokens.verify(&token, &ann, end_ms), None);
        assert_eq!(tokens.verify(&token, &bob, now_ms), None);
        assert_eq!(others.verify(&token, &ann, now_ms), None);
        let later = token.replace("1800000000000", "1900000000000");
        let longer = [format!("{token}."), format!("{token}0")];
        for wrong in [&later[..], &token[1..], &longer[0], &longer[1], "", "..", "1.2.3", "x.y.z"] {
            assert_eq!(tokens.verify(wrong, &ann, now_ms), None, "{wrong}");
        }
    }
}
