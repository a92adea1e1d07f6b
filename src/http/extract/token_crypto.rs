//! How jsonwebtoken signs and verifies: with ring, which TLS needs anyway. jsonwebtoken's own back ends add thirty crates.

use std::result::Result;

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use ring::hmac;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm,
};
use signature::{Signer, Verifier};

/// The algorithms of `Tokens`: HS256; and RS256, ES256 and EdDSA, which only verify.
pub(super) static RING: CryptoProvider = CryptoProvider {
    signer_factory: |algorithm, key| signer(*algorithm, key),
    verifier_factory: |algorithm, key| verifier(*algorithm, key),
    key_utils: KeyUtils::new_unimplemented(),
};

fn signer(algorithm: Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    match algorithm {
        Algorithm::HS256 => Ok(Box::new(SharedSecret::new(key.as_bytes()))),
        _ => Err(ErrorKind::UnsupportedAlgorithm.into()),
    }
}

fn verifier(algorithm: Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    let verification: &'static dyn VerificationAlgorithm = match algorithm {
        Algorithm::HS256 => return Ok(Box::new(SharedSecret::new(key.try_get_as_bytes()?))),
        Algorithm::RS256 => &RSA_PKCS1_2048_8192_SHA256,
        Algorithm::ES256 => &ECDSA_P256_SHA256_FIXED,
        Algorithm::EdDSA => &ED25519,
        _ => return Err(ErrorKind::UnsupportedAlgorithm.into()),
    };
    let key = UnparsedPublicKey::new(verification, key.try_get_as_bytes()?.to_vec());
    Ok(Box::new(PublicKey { algorithm, key }))
}

struct SharedSecret(hmac::Key);

impl SharedSecret {
    fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }
}

impl Signer<Vec<u8>> for SharedSecret {
    fn try_sign(&self, message: &[u8]) -> Result<Vec<u8>, signature::Error> {
        Ok(hmac::sign(&self.0, message).as_ref().to_vec())
    }
}

impl JwtSigner for SharedSecret {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

impl Verifier<Vec<u8>> for SharedSecret {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        hmac::verify(&self.0, message, signature).map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for SharedSecret {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

struct PublicKey {
    algorithm: Algorithm,
    key: UnparsedPublicKey<Vec<u8>>,
}

impl Verifier<Vec<u8>> for PublicKey {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        self.key.verify(message, signature).map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for PublicKey {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

/// The configured key cannot verify tokens.
#[derive(Debug, thiserror::Error)]
#[error(
    "configuration: auth.jwt_public_key is not an RSA (2048 bits or more), EC (P-256) or Ed25519 public key in PEM form (set SECKILL_AUTH__JWT_PUBLIC_KEY)"
)]
pub struct InvalidKey;

/// The bytes of the shortest RSA key that `verifier` takes: a modulus of 2048 bits, and an exponent of a byte.
const RSA_MIN: usize = 268;

/// The public key in this PEM text, and the algorithm of its signatures.
pub(super) fn public_key_of(pem: &str) -> Result<(DecodingKey, Algorithm), InvalidKey> {
    // A private key contains the public one. A service that only verifies must not have it.
    if pem.contains("PRIVATE KEY") {
        return Err(InvalidKey);
    }
    let pem = pem.as_bytes();
    let key = if let Ok(key) = DecodingKey::from_rsa_pem(pem) {
        let is_long = key.try_get_as_bytes().is_ok_and(|bytes| bytes.len() >= RSA_MIN);
        is_long.then_some((key, Algorithm::RS256))
    } else if let Ok(key) = DecodingKey::from_ec_pem(pem) {
        Some((key, Algorithm::ES256))
    } else {
        DecodingKey::from_ed_pem(pem).ok().map(|key| (key, Algorithm::EdDSA))
    };
    key.ok_or(InvalidKey)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
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
        assert!(public_key_of(RSA_1024).is_err());
        let private = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let private = BASE64_STANDARD.encode(private);
        for label in ["PRIVATE KEY", "EC PRIVATE KEY"] {
            let pem = format!("-----BEGIN {label}-----\n{private}\n-----END {label}-----\n");
            assert!(public_key_of(&pem).is_err(), "{label}");
        }
    }
}
