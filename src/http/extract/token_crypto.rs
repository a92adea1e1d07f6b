//! How jsonwebtoken signs and verifies: by ring, which TLS brings anyway. What jsonwebtoken offers itself is thirty more crates.

use std::result::Result;

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use ring::hmac;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm,
};
use signature::{Signer, Verifier};

/// The algorithms of `Tokens`: HS256, and for verifying alone RS256, ES256 and EdDSA.
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
