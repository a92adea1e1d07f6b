//! The key that verifies buyers' tokens: a shared secret (HS256), or a public key (RS256, ES256, EdDSA).

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::DecodingKey;
use ring::hmac;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm,
};

pub(super) enum TokenKey {
    Secret(hmac::Key),
    Public(&'static str, UnparsedPublicKey<Vec<u8>>),
}

#[derive(Debug, thiserror::Error)]
#[error(
    "configuration: auth.jwt_public_key is not an RSA (2048 bits or more), EC (P-256) or Ed25519 public key in PEM form (set SECKILL_AUTH__JWT_PUBLIC_KEY)"
)]
pub struct InvalidKey;

/// The bytes of the shortest RSA key that is taken: a modulus of 2048 bits, and an exponent of a byte.
const RSA_MIN: usize = 268;

impl TokenKey {
    pub(super) fn secret(secret: &str) -> Self {
        Self::Secret(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()))
    }

    pub(super) fn public(pem: &str) -> Result<Self, InvalidKey> {
        // A private key contains the public one. A service that only verifies must not have it.
        if pem.contains("PRIVATE KEY") {
            return Err(InvalidKey);
        }
        let pem = pem.as_bytes();
        let (name, verification, key): (_, &'static dyn VerificationAlgorithm, _) =
            if let Ok(key) = DecodingKey::from_rsa_pem(pem) {
                ("RS256", &RSA_PKCS1_2048_8192_SHA256, key)
            } else if let Ok(key) = DecodingKey::from_ec_pem(pem) {
                ("ES256", &ECDSA_P256_SHA256_FIXED, key)
            } else {
                ("EdDSA", &ED25519, DecodingKey::from_ed_pem(pem).map_err(|_| InvalidKey)?)
            };
        let bytes = key.try_get_as_bytes().map_err(|_| InvalidKey)?;
        if name == "RS256" && bytes.len() < RSA_MIN {
            return Err(InvalidKey);
        }
        Ok(Self::Public(name, UnparsedPublicKey::new(verification, bytes.to_vec())))
    }

    /// The only algorithm that the header of a token may name.
    pub(super) const fn algorithm(&self) -> &'static str {
        match self {
            Self::Secret(_) => "HS256",
            Self::Public(name, _) => name,
        }
    }

    pub(super) fn has_signed(&self, message: &str, signature: &str) -> bool {
        match self {
            Self::Secret(key) => {
                let mut bytes = [0; 48];
                let length = BASE64_URL_SAFE_NO_PAD.decode_slice(signature, &mut bytes);
                length.is_ok_and(|length| hmac::verify(key, message.as_bytes(), &bytes[..length]).is_ok())
            }
            Self::Public(_, key) => {
                let signature = BASE64_URL_SAFE_NO_PAD.decode(signature);
                signature.is_ok_and(|signature| key.verify(message.as_bytes(), &signature).is_ok())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::prelude::BASE64_STANDARD;
    use ring::rand::SystemRandom;
    use ring::signature::Ed25519KeyPair;

    use super::*;

    const RSA_1024: &str = "-----BEGIN PUBLIC KEY-----\n\
             MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDHDtIxceaBgp1iDGuGfykfZ/Yp\n\
             EKjMkCfz/bRLeC2HVdg62xZT43Ff++cCSFi+i8IpbZRFbRywfW372jpPJqGMZ50v\n\
             2rLRXdrq3Q1fhzbFCylJg1/eAnek0gl78g0SEXm641WzCvISA7sUu68j8/h3UMIk\n\
             Aih9XcQOby0JOxjg8QIDAQAB\n\
             -----END PUBLIC KEY-----\n";

    #[test]
    fn a_short_key_and_a_private_one_are_refused() {
        assert!(TokenKey::public(RSA_1024).is_err());
        let private = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let private = BASE64_STANDARD.encode(private);
        for label in ["PRIVATE KEY", "EC PRIVATE KEY"] {
            let pem = format!("-----BEGIN {label}-----\n{private}\n-----END {label}-----\n");
            assert!(TokenKey::public(&pem).is_err(), "{label}");
        }
    }
}
