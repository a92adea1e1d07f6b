//! The keys that verify tokens now. A set never changes: another one replaces it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use seckill_domain::json_object;
use serde_json::Value;

use crate::fault::TokenFault;
use crate::key::{Algorithm, Key};

/// The most keys that are tried for a token. It bounds the cost of a token whose header names none.
const TRIED_MAX: usize = 4;

pub(crate) struct KeySet {
    keys: Vec<Arc<Key>>,
    /// Headers of tokens that a key has signed. An issuer uses one header until it names a new key. To parse it for each token of a crowd
    /// would double the time of the check.
    signers: [OnceLock<Signers>; 4],
}

/// The keys that may have signed the tokens with a header.
struct Signers {
    header: Box<str>,
    algorithm: Algorithm,
    /// What the header says the key is called.
    name: Option<Box<str>>,
    keys: Vec<Arc<Key>>,
}

/// A token that no key has signed.
#[derive(Debug)]
pub(crate) enum Unverified {
    Fault(TokenFault),
    /// A public key of the issuer that is not in the set may have signed it. The name of the key, if the header has one.
    UnknownKey(Option<Box<str>>),
}

impl KeySet {
    pub(crate) fn new(keys: Vec<Arc<Key>>) -> Self {
        Self { keys, signers: Default::default() }
    }

    pub(crate) fn verify(&self, header: &str, message: &str, signature: &str) -> Result<(), Unverified> {
        let mut known = self.signers.iter().filter_map(OnceLock::get);
        if let Some(signers) = known.find(|signers| *signers.header == *header) {
            return signers.verify(message, signature);
        }
        let signers = self.signers_of(header).map_err(Unverified::Fault)?;
        signers.verify(message, signature)?;
        // The first free place. Another thread may be writing the same header: then it has two places.
        if let Some(free) = self.signers.iter().find(|place| place.get().is_none()) {
            _ = free.set(signers);
        }
        Ok(())
    }

    fn signers_of(&self, header: &str) -> Result<Signers, TokenFault> {
        let json = BASE64_URL_SAFE_NO_PAD.decode(header).map_err(|_| TokenFault::Malformed)?;
        let parameters: HashMap<String, Value> = json_object::from_slice(&json).map_err(|_| TokenFault::Malformed)?;
        // RFC 7515, 4.1.11: a recipient refuses a token whose header lists an unknown extension as critical. We know no extension.
        if parameters.contains_key("crit") {
            return Err(TokenFault::Critical);
        }
        let text = |name: &str| parameters.get(name).and_then(Value::as_str);
        let algorithm = text("alg").and_then(|name| name.parse().ok()).ok_or(TokenFault::Algorithm)?;
        let name = text("kid");
        // The key that the token names is tried first.
        let is_named = |key: &&&Arc<Key>| name.is_some() && key.name.as_deref() == name;
        let fitting = || self.keys.iter().filter(|key| key.is_for(algorithm, name));
        let named_first = fitting().filter(|key| is_named(&key)).chain(fitting().filter(|key| !is_named(&key)));
        let keys = named_first.take(TRIED_MAX).cloned().collect();
        Ok(Signers { header: header.into(), algorithm, name: name.map(Into::into), keys })
    }
}

impl Signers {
    fn verify(&self, message: &str, signature: &str) -> Result<(), Unverified> {
        if self.keys.iter().any(|key| key.has_signed(self.algorithm, message, signature)) {
            return Ok(());
        }
        let is_named = self.name.is_some() && self.keys.iter().any(|key| key.name == self.name);
        if self.algorithm.is_public() && !is_named {
            return Err(Unverified::UnknownKey(self.name.clone()));
        }
        let fault = if self.keys.is_empty() { TokenFault::Algorithm } else { TokenFault::Signature };
        Err(Unverified::Fault(fault))
    }
}
