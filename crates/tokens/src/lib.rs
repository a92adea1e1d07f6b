//! Buyers' tokens: JWTs that the shop's issuer signs. The keys come from the settings, or from the key set that the issuer publishes.
//!
//! A check takes no lock: a set of keys is replaced as a whole, and remembers the headers that it has verified.

mod claims;
mod fault;
mod issuer;
#[cfg(test)]
mod issuer_tests;
mod jwks;
mod key;
mod key_set;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use seckill_config::Auth;
use seckill_domain::ids::UserId;
use serde_json::{Map, Value, json};

use claims::ClaimTerms;
use fault::FaultLog;
pub use fault::TokenFault;
pub use issuer::{Issuer, IssuerError};
pub use key::InvalidKey;
use key::Key;
use key_set::{KeySet, Unverified};

#[derive(Debug)]
pub struct Buyer {
    pub user: UserId,
    pub level: i64,
    /// With the leeway.
    pub expires_at_ms: i64,
}

/// Verifies buyers' tokens, and issues them in development mode.
pub struct Tokens {
    keys: Keys,
    claims: ClaimTerms,
    faults: FaultLog,
    /// Signs the tokens of development mode.
    signing: Option<Arc<Key>>,
}

enum Keys {
    OfSettings(Box<KeySet>),
    OfIssuer(Arc<Issuer>),
}

impl Tokens {
    /// # Errors
    /// `auth.jwt_public_key` has something else than public keys.
    pub fn new(auth: &Auth, dev: bool) -> Result<Self, InvalidKey> {
        let secrets = [&auth.jwt_secret, &auth.jwt_secret_previous].into_iter().filter(|secret| !secret.is_empty());
        let mut own: Vec<Arc<Key>> = secrets.map(|secret| Arc::new(Key::secret(secret))).collect();
        let signing = own.first().filter(|_| dev).cloned();
        own.extend(Key::in_pem(&auth.jwt_public_key)?.into_iter().map(Arc::new));
        let keys = match auth.jwks_url.as_str() {
            "" => Keys::OfSettings(Box::new(KeySet::new(own))),
            _ => Keys::OfIssuer(Arc::new(Issuer::new(auth, own))),
        };
        let required = |text: &String| (!text.is_empty()).then(|| text.clone());
        let claims = ClaimTerms {
            id: auth.jwt_claim_id.clone(),
            level: auth.jwt_claim_level.clone(),
            audience: required(&auth.jwt_audience),
            issuer: required(&auth.jwt_issuer),
            leeway_ms: auth.jwt_leeway_s.saturating_mul(1000).cast_signed(),
        };
        Ok(Self { keys, claims, faults: FaultLog::default(), signing })
    }

    /// `None` if the settings have all keys.
    pub fn issuer(&self) -> Option<&Arc<Issuer>> {
        match &self.keys {
            Keys::OfSettings(_) => None,
            Keys::OfIssuer(issuer) => Some(issuer),
        }
    }

    /// A buyer's token that is valid until `expires_at_s`. `None` outside development mode, and without a secret to sign it.
    pub fn issue(&self, user: &UserId, level: i64, expires_at_s: i64) -> Option<String> {
        let ClaimTerms { id, level: level_name, audience, issuer, .. } = &self.claims;
        let mut claims = Map::from_iter([
            (id.clone(), json!(user.as_str())),
            (level_name.clone(), json!(level)),
            ("exp".to_owned(), json!(expires_at_s)),
        ]);
        for (name, required) in [("aud", audience), ("iss", issuer)] {
            claims.extend(required.iter().map(|required| (name.to_owned(), json!(required))));
        }
        let [header, claims] = [r#"{"alg":"HS256","typ":"JWT"}"#, &Value::Object(claims).to_string()]
            .map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
        let message = format!("{header}.{claims}");
        let signature = self.signing.as_ref()?.sign(&message)?;
        Some(format!("{message}.{signature}"))
    }

    /// The buyer that a valid token names.
    ///
    /// # Errors
    /// The first reason against the token. It is logged once a minute.
    pub fn buyer(&self, token: &str, now_ms: i64) -> Result<Buyer, TokenFault> {
        let buyer = self.verified(token, now_ms);
        if let Err(fault) = &buyer {
            self.faults.note(*fault, &self.claims, now_ms);
        }
        buyer
    }

    fn verified(&self, token: &str, now_ms: i64) -> Result<Buyer, TokenFault> {
        let (message, signature) = token.rsplit_once('.').ok_or(TokenFault::Malformed)?;
        let (header, claims) = message.split_once('.').ok_or(TokenFault::Malformed)?;
        if claims.contains('.') {
            return Err(TokenFault::Malformed);
        }
        let verified = match &self.keys {
            Keys::OfSettings(keys) => keys.verify(header, message, signature),
            Keys::OfIssuer(issuer) => issuer.keys.load().verify(header, message, signature),
        };
        match (verified, self.issuer()) {
            (Ok(()), _) => {}
            (Err(Unverified::Fault(fault)), _) => return Err(fault),
            (Err(Unverified::UnknownKey(name)), Some(issuer)) if issuer.may_bring(name.as_deref()) => {
                return Err(TokenFault::KeyNotRead);
            }
            (Err(Unverified::UnknownKey(_)), Some(_)) => return Err(TokenFault::UnknownKey),
            (Err(Unverified::UnknownKey(_)), None) => return Err(TokenFault::Signature),
        }
        let json = BASE64_URL_SAFE_NO_PAD.decode(claims).map_err(|_| TokenFault::Malformed)?;
        let claims = self.claims.read(&json).ok_or(TokenFault::Malformed)?;
        self.claims.check(&claims, now_ms)
    }

    /// The user that a token names, unverified: used only to choose which requests are shed.
    pub fn unverified_user(&self, token: &str) -> Option<String> {
        let (_, claims_and_signature) = token.split_once('.')?;
        let (claims, _) = claims_and_signature.split_once('.')?;
        let json = BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?;
        self.claims.read(&json)?.id().map(str::to_owned)
    }

    /// The reason for the log: it names the claim.
    pub fn reason(&self, fault: TokenFault) -> String {
        fault.reason(&self.claims)
    }
}
