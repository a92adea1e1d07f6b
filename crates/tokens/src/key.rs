//! A key that verifies buyers' tokens, and the algorithms for which it may be used: a secret never verifies as a public key, nor a public key
//! as a secret.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::DecodingKey;
use ring::hmac;
use ring::signature::{self, UnparsedPublicKey, VerificationAlgorithm};

/// The names in the headers of tokens. `none` is no algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString)]
pub(crate) enum Algorithm {
    HS256,
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    #[strum(serialize = "EdDSA", serialize = "Ed25519")]
    EdDsa,
}

use Algorithm::{ES256, ES384, EdDsa, HS256, PS256, PS384, PS512, RS256, RS384, RS512};

/// The algorithms of an RSA key that names none.
pub(crate) const RSA: &[Algorithm] = &[RS256, RS384, RS512, PS256, PS384, PS512];
/// The bytes of the shortest RSA key that is taken: a modulus of 2048 bits, and an exponent of a byte.
const RSA_MIN: usize = 268;

impl Algorithm {
    fn verification(self) -> Option<&'static dyn VerificationAlgorithm> {
        Some(match self {
            HS256 => return None,
            RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            PS256 => &signature::RSA_PSS_2048_8192_SHA256,
            PS384 => &signature::RSA_PSS_2048_8192_SHA384,
            PS512 => &signature::RSA_PSS_2048_8192_SHA512,
            ES256 => &signature::ECDSA_P256_SHA256_FIXED,
            ES384 => &signature::ECDSA_P384_SHA384_FIXED,
            EdDsa => &signature::ED25519,
        })
    }

    pub(crate) fn is_public(self) -> bool {
        self != HS256
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "configuration: auth.jwt_public_key is not one or more RSA (2048 bits or more), EC (P-256) or Ed25519 public keys in PEM form (set SECKILL_AUTH__JWT_PUBLIC_KEY)"
)]
pub struct InvalidKey;

pub(crate) struct Key {
    /// The issuer's name for the key (`kid`). A key of the settings has none, and verifies tokens that name any.
    pub(crate) name: Option<Box<str>>,
    algorithms: Vec<Algorithm>,
    material: Material,
}

enum Material {
    Secret(hmac::Key),
    /// As PKCS#1 or SEC 1 has it, or the bytes of an Ed25519 key.
    Public(Vec<u8>),
}

impl Key {
    pub(crate) fn secret(secret: &str) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        Self { name: None, algorithms: vec![HS256], material: Material::Secret(key) }
    }

    /// A public key with the algorithms for which its owner uses it.
    pub(crate) fn public(name: Option<&str>, algorithms: &[Algorithm], bytes: Vec<u8>) -> Self {
        Self { name: name.map(Into::into), algorithms: algorithms.to_vec(), material: Material::Public(bytes) }
    }

    /// Public keys in PEM form, one after the other.
    pub(crate) fn in_pem(text: &str) -> Result<Vec<Self>, InvalidKey> {
        let blocks = text.split("-----BEGIN ").map(str::trim).filter(|block| !block.is_empty());
        blocks.map(|block| Self::of_block(&format!("-----BEGIN {block}\n"))).collect()
    }

    fn of_block(pem: &str) -> Result<Self, InvalidKey> {
        // A private key contains the public one. A service that only verifies must not have it.
        if pem.contains("PRIVATE KEY") {
            return Err(InvalidKey);
        }
        let pem = pem.as_bytes();
        let (algorithm, key) = if let Ok(key) = DecodingKey::from_rsa_pem(pem) {
            (RS256, key)
        } else if let Ok(key) = DecodingKey::from_ec_pem(pem) {
            (ES256, key)
        } else {
            (EdDsa, DecodingKey::from_ed_pem(pem).map_err(|_| InvalidKey)?)
        };
        let bytes = key.try_get_as_bytes().map_err(|_| InvalidKey)?;
        if algorithm == RS256 && bytes.len() < RSA_MIN {
            return Err(InvalidKey);
        }
        Ok(Self::public(None, &[algorithm], bytes.to_vec()))
    }

    pub(crate) fn is_for(&self, algorithm: Algorithm, name: Option<&str>) -> bool {
        let is_named = self.name.as_deref().is_none_or(|own| name.is_none_or(|name| name == own));
        is_named && self.algorithms.contains(&algorithm)
    }

    pub(crate) fn has_signed(&self, algorithm: Algorithm, message: &str, signature: &str) -> bool {
        match &self.material {
            Material::Secret(key) => {
                let mut bytes = [0; 48];
                let length = BASE64_URL_SAFE_NO_PAD.decode_slice(signature, &mut bytes);
                length.is_ok_and(|length| hmac::verify(key, message.as_bytes(), &bytes[..length]).is_ok())
            }
            Material::Public(key) => {
                let Some(verification) = algorithm.verification() else { return false };
                let key = UnparsedPublicKey::new(verification, key);
                let signature = BASE64_URL_SAFE_NO_PAD.decode(signature);
                signature.is_ok_and(|signature| key.verify(message.as_bytes(), &signature).is_ok())
            }
        }
    }

    /// `None` for a public key, which cannot sign.
    pub(crate) fn sign(&self, message: &str) -> Option<String> {
        let Material::Secret(key) = &self.material else { return None };
        Some(BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(key, message.as_bytes())))
    }
}
