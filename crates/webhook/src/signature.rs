//! Signed messages, as Standard Webhooks has them: HMAC-SHA256 over id, timestamp and raw body. Pure: time is a parameter.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// How far a message's time may be from now, in both directions.
pub const TOLERANCE_S: i64 = 300;

/// A secret that both ends share: `whsec_` and base64 of 24 to 64 bytes.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// A secret that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a secret must be whsec_ and base64 of 24 to 64 bytes")]
pub struct InvalidSecret;

/// Why a message's signature is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("the signature's headers are missing or malformed")]
    Malformed,
    #[error("the message's time is more than 300 s from now")]
    NotNow,
    #[error("the signature does not match any known key")]
    NotOurs,
}

impl Secret {
    pub fn parse(text: &str) -> Result<Self, InvalidSecret> {
        let bytes = text.strip_prefix("whsec_").and_then(|key| STANDARD.decode(key).ok()).ok_or(InvalidSecret)?;
        if (24..=64).contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(InvalidSecret) }
    }

    fn mac(&self, id: &str, timestamp_s: i64, body: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(format!("{id}.{timestamp_s}.").as_bytes());
        mac.update(body);
        Some(mac)
    }

    /// The value of `webhook-signature`.
    pub fn sign(&self, id: &str, timestamp_s: i64, body: &[u8]) -> String {
        // HMAC accepts a key of any length, so that there is always a signature.
        let mac = self.mac(id, timestamp_s, body).map(|mac| STANDARD.encode(mac.finalize().into_bytes()));
        format!("v1,{}", mac.unwrap_or_default())
    }
}

/// The headers that a signed message carries, with a signature by each secret; none without a secret.
pub fn signed_headers(secrets: &[Secret], id: &str, now_s: i64, body: &[u8]) -> Vec<(&'static str, String)> {
    if secrets.is_empty() {
        return Vec::new();
    }
    let signatures: Vec<String> = secrets.iter().map(|secret| secret.sign(id, now_s, body)).collect();
    vec![
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", now_s.to_string()),
        ("webhook-signature", signatures.join(" ")),
    ]
}

/// Checks that one of a message's signatures is by one of `keys`: the current one, or during a change the former one.
///
/// # Errors
/// Headers that are missing or malformed, a time more than 300 s from `now_s`, or no signature by a known key.
pub fn verify(
    keys: &[Secret],
    id: &str,
    timestamp: &str,
    signatures: &str,
    body: &[u8],
    now_s: i64,
) -> Result<(), SignatureError> {
    if id.is_empty() || id.len() > 256 || signatures.len() > 4096 {
        return Err(SignatureError::Malformed);
    }
    let timestamp_s: i64 = timestamp.parse().map_err(|_| SignatureError::Malformed)?;
    if now_s.abs_diff(timestamp_s) > TOLERANCE_S.unsigned_abs() {
        return Err(SignatureError::NotNow);
    }
    let given = signatures.split(' ').filter_map(|text| STANDARD.decode(text.strip_prefix("v1,")?).ok());
    for signature in given {
        for key in keys {
            // Compared in constant time.
            if key.mac(id, timestamp_s, body).is_some_and(|mac| mac.verify_slice(&signature).is_ok()) {
                return Ok(());
            }
        }
    }
    Err(SignatureError::NotOurs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const AT: i64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn key() -> Secret {
        Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap()
    }

    fn check(signatures: &str, body: &[u8], now_s: i64) -> Result<(), SignatureError> {
        verify(&[key()], ID, &AT.to_string(), signatures, body, now_s)
    }

    /// The vector that the Standard Webhooks libraries are tested with.
    #[test]
    fn the_published_vector_holds() {
        assert_eq!(key().sign(ID, AT, BODY), SIGNATURE);
        assert_eq!(check(SIGNATURE, BODY, AT), Ok(()));
    }

    #[test]
    fn one_good_signature_is_enough_and_a_retired_key_is_refused() {
        let other = Secret::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").unwrap();
        let both = format!("{} {SIGNATURE}", other.sign(ID, AT, BODY));
        assert_eq!(check(&both, BODY, AT), Ok(()));
        assert_eq!(verify(&[other.clone(), key()], ID, &AT.to_string(), SIGNATURE, BODY, AT), Ok(()), "rotation");
        assert_eq!(verify(&[other], ID, &AT.to_string(), SIGNATURE, BODY, AT), Err(SignatureError::NotOurs));
    }

    #[test]
    fn a_changed_old_or_malformed_message_is_refused() {
        assert_eq!(
            check(SIGNATURE, br#"{"test":2432232314}"#, AT),
            Err(SignatureError::NotOurs),
            "the same JSON, written anew"
        );
        assert_eq!(check(SIGNATURE, BODY, AT + 301), Err(SignatureError::NotNow));
        assert_eq!(check(SIGNATURE, BODY, AT - 301), Err(SignatureError::NotNow));
        assert_eq!(check(SIGNATURE, BODY, AT + 300), Ok(()));
        for signatures in ["", "v1,", "v1,AAAA", "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", "g0hM"] {
            assert_eq!(check(signatures, BODY, AT), Err(SignatureError::NotOurs), "{signatures}");
        }
        assert_eq!(verify(&[key()], ID, "now", SIGNATURE, BODY, AT), Err(SignatureError::Malformed));
        assert_eq!(verify(&[key()], "", "1614265330", SIGNATURE, BODY, AT), Err(SignatureError::Malformed));
    }

    #[test]
    fn a_secret_is_long_enough() {
        for bad in ["", "whsec_", "whsec_AAAA", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_not base64 at all, no no no"]
        {
            assert!(Secret::parse(bad).is_err(), "{bad}");
        }
    }
}
