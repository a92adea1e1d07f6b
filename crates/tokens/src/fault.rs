//! Why a token is refused. The log and, in development mode, the answer name the reason. Neither has a part of the token.

use std::sync::atomic::{AtomicI64, Ordering};

use strum::{EnumCount, IntoStaticStr};

use crate::claims::ClaimTerms;

#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumCount, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum TokenFault {
    Malformed,
    Algorithm,
    Critical,
    UnknownKey,
    /// No key verifies it yet. The issuer is asked for its keys.
    KeyNotRead,
    Signature,
    Audience,
    Issuer,
    Expiry,
    Expired,
    Beginning,
    Early,
    Id,
    Level,
}

impl TokenFault {
    /// For everybody.
    pub fn text(self) -> &'static str {
        match self {
            Self::Expired => "the token has expired",
            Self::Early => "the token is not valid yet",
            Self::Id => "the token names no valid user",
            _ => "the token is not valid",
        }
    }

    /// For the log.
    pub(crate) fn reason(self, terms: &ClaimTerms) -> String {
        let ClaimTerms { id, level, .. } = terms;
        match self {
            Self::Malformed => "it is not a signed JWT with an object of claims".to_owned(),
            Self::Algorithm => "no key is for the algorithm of its header".to_owned(),
            Self::Critical => "its header lists an extension as critical".to_owned(),
            Self::UnknownKey => "the issuer has no key with the name (kid) in its header".to_owned(),
            Self::KeyNotRead => "its key is not known yet; the issuer is asked for its keys".to_owned(),
            Self::Signature => "no key has signed it".to_owned(),
            Self::Audience => "the claim aud is missing or not auth.jwt_audience".to_owned(),
            Self::Issuer => "the claim iss is missing or not auth.jwt_issuer".to_owned(),
            Self::Expiry => "the claim exp is missing or not a number of seconds".to_owned(),
            Self::Expired => "the time in the claim exp is over".to_owned(),
            Self::Beginning => "the claim nbf is not a number of seconds".to_owned(),
            Self::Early => "the time in the claim nbf has not come".to_owned(),
            Self::Id => format!("the claim {id} is not a text of 1 to 128 bytes without control characters"),
            Self::Level => format!("the claim {level} is not a whole number"),
        }
    }
}

const MINUTE_MS: i64 = 60_000;

/// When each fault was logged: once a minute.
#[derive(Default)]
pub(crate) struct FaultLog([AtomicI64; TokenFault::COUNT]);

impl FaultLog {
    pub(crate) fn note(&self, fault: TokenFault, terms: &ClaimTerms, now_ms: i64) {
        let logged = &self.0[fault as usize];
        let last = logged.load(Ordering::Relaxed);
        let is_due = last == 0 || (now_ms - last).abs() >= MINUTE_MS;
        if !is_due || logged.compare_exchange(last, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let reason = fault.reason(terms);
        match fault {
            // Every buyer's token comes to this.
            TokenFault::Expired => tracing::debug!(reason, "buyers' tokens are refused"),
            _ => tracing::warn!(reason, "buyers' tokens are refused; said once a minute"),
        }
    }
}
