//! Signed messages as Standard Webhooks defines them: HMAC-SHA256 over id, timestamp and raw body. Pure: time is a parameter.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::digest::CtOutput;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The greatest difference between a message's time and now, in both directions.
const TOLERANCE_S: i64 = 300;
/// Only the first signatures of a message are checked, up to this number. A sender signs with one secret, or with two during a change.
/// The others leave room for signatures of other versions.
const SIGNATURES_MAX: usize = 4;
/// The longest header `webhook-signature`, and the longest id of a message.
const HEADER_MAX_BYTES: usize = 1024;
const ID_MAX_BYTES: usize = 256;

type HmacSha256 = Hmac<Sha256>;

/// A shared secret: `whsec_` and base64 of 24 to 64 bytes. It is kept as the state of an HMAC after the key; each message continues from
/// there.
#[derive(Clone)]
pub struct Secret(HmacSha256);

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
        if !(24..=64).contains(&bytes.len()) {
            return Err(InvalidSecret);
        }
        HmacSha256::new_from_slice(&bytes).map(Self).map_err(|_| InvalidSecret)
    }

    fn mac(&self, id: &str, timestamp: &str, body: &[u8]) -> CtOutput<HmacSha256> {
        #[cfg(test)]
        tests::COMPUTED.with(|computed| computed.set(computed.get() + 1));
        let mut mac = self.0.clone();
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        mac.finalize()
    }

    /// The value of `webhook-signature`.
    pub fn sign(&self, id: &str, timestamp_s: i64, body: &[u8]) -> String {
        format!("v1,{}", STANDARD.encode(self.mac(id, &timestamp_s.to_string(), body).into_bytes()))
    }
}

/// The headers of a signed message, with a signature by each secret; none without a secret.
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

/// Checks that one of a message's first four signatures is by one of `keys`: the current key, or during a change the former one. The
/// body is read once for each key, however many signatures there are. Without any well-formed signature it is not read at all.
///
/// # Errors
/// Missing or malformed headers, a time more than 300 s from `now_s`, or no signature by a known key.
pub fn verify(
    keys: &[Secret],
    id: &str,
    timestamp: &str,
    signatures: &str,
    body: &[u8],
    now_s: i64,
) -> Result<(), SignatureError> {
    if !(1..=ID_MAX_BYTES).contains(&id.len()) || signatures.len() > HEADER_MAX_BYTES {
        return Err(SignatureError::Malformed);
    }
    let timestamp_s: i64 = timestamp.parse().map_err(|_| SignatureError::Malformed)?;
    let given: Vec<_> = signatures.split(' ').take(SIGNATURES_MAX).filter_map(parse_signature).collect();
    if given.is_empty() {
        return Err(SignatureError::Malformed);
    }
    if now_s.abs_diff(timestamp_s) > TOLERANCE_S.unsigned_abs() {
        return Err(SignatureError::NotNow);
    }
    let is_ours = keys.iter().any(|key| {
        let expected = key.mac(id, timestamp, body);
        // Each is compared in constant time.
        given.contains(&expected)
    });
    if is_ours { Ok(()) } else { Err(SignatureError::NotOurs) }
}

/// A signature of version 1: `v1,` and the base64 of 32 bytes. `None` for malformed ones, and for other versions.
fn parse_signature(text: &str) -> Option<CtOutput<HmacSha256>> {
    // Longer text is not decoded.
    let base64 = text.strip_prefix("v1,").filter(|base64| base64.len() == 44)?;
    let bytes: [u8; 32] = STANDARD.decode(base64).ok()?.try_into().ok()?;
    Some(CtOutput::new(bytes.into()))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How many HMACs this thread has computed.
        pub(super) static COMPUTED: Cell<usize> = const { Cell::new(0) };
    }

    /// The result of the work, and the number of HMACs that it computed.
    fn counted<T>(work: impl FnOnce() -> T) -> (T, usize) {
        let before = COMPUTED.get();
        let result = work();
        (result, COMPUTED.get() - before)
    }

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

    /// The test vector of the Standard Webhooks libraries.
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
        let reformatted = br#"{"test":2432232314}"#;
        assert_eq!(check(SIGNATURE, reformatted, AT), Err(SignatureError::NotOurs));
        assert_eq!(check(SIGNATURE, BODY, AT + 301), Err(SignatureError::NotNow));
        assert_eq!(check(SIGNATURE, BODY, AT - 301), Err(SignatureError::NotNow));
        assert_eq!(check(SIGNATURE, BODY, AT + 300), Ok(()));
        assert_eq!(verify(&[key()], ID, "now", SIGNATURE, BODY, AT), Err(SignatureError::Malformed));
        assert_eq!(verify(&[key()], "", "1614265330", SIGNATURE, BODY, AT), Err(SignatureError::Malformed));
    }

    /// An unsigned message is refused before its body is read: a large body costs no more than a small one.
    #[test]
    fn without_a_signature_that_could_be_right_no_hmac_is_computed() {
        let short = format!("v1,{}", STANDARD.encode([7; 31]));
        let others = "v1a,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= ".repeat(4);
        for signatures in
            ["", "g0hM", "v1,", &"v1, ".repeat(500), &" ".repeat(1024), &"v1,AAAA ".repeat(4), &short, &others]
        {
            let refused = counted(|| check(signatures, BODY, AT));
            assert_eq!(refused, (Err(SignatureError::Malformed), 0), "{signatures}");
        }
        // Four empty ones hide the following ones.
        assert_eq!(counted(|| check(&format!("v1, v1, v1, v1, {SIGNATURE}"), BODY, AT)).1, 0);
        let old = counted(|| check(SIGNATURE, BODY, AT + 301));
        assert_eq!(old, (Err(SignatureError::NotNow), 0));
    }

    #[test]
    fn the_body_is_read_once_for_each_key_however_many_signatures_there_are() {
        let other = Secret::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").unwrap();
        let wrong = |n: u8| format!("v1,{}", STANDARD.encode([n; 32]));
        let four = [wrong(1), wrong(2), wrong(3), wrong(4)].join(" ");
        let keys = [key(), other];
        for signatures in [&wrong(1), &four] {
            let refused = counted(|| verify(&keys, ID, &AT.to_string(), signatures, BODY, AT));
            assert_eq!(refused, (Err(SignatureError::NotOurs), 2), "{signatures}");
        }
        let too_long = (0..22).map(wrong).collect::<Vec<_>>().join(" ");
        assert_eq!(counted(|| check(&too_long, BODY, AT)), (Err(SignatureError::Malformed), 0));
        // The fourth is checked, and the fifth is not.
        let three = [wrong(1), wrong(2), wrong(3)].join(" ");
        assert_eq!(check(&format!("{three} {SIGNATURE}"), BODY, AT), Ok(()));
        assert_eq!(check(&format!("{four} {SIGNATURE}"), BODY, AT), Err(SignatureError::NotOurs));
    }

    #[test]
    fn a_secret_is_long_enough() {
        for bad in ["", "whsec_", "whsec_AAAA", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_not base64 at all, no no no"]
        {
            assert!(Secret::parse(bad).is_err(), "{bad}");
        }
    }
}
