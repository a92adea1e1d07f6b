//! Signing in and out. Names are tried as often as limits allow, and it shows nowhere which of them exist.

use serde_json::json;

use super::{AdminError, Console};
use crate::domain::account::{Account, AccountName, AccountRole, NewPassword};
use crate::domain::ids::Invalid;
use crate::domain::limiter::SlotKey;
use crate::gate::GateError;
use crate::gate::limiter::Take;

/// What a browser shows to say who it is: 32 random bytes, of which only a hash is kept.
pub struct SessionToken(String);

impl SessionToken {
    fn new() -> Self {
        Self(hex(&rand::random()))
    }

    /// As it came in a cookie.
    pub fn received(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn hash(&self) -> blake3::Hash {
        blake3::hash(self.0.as_bytes())
    }

    /// The token against forgery: known to whoever can read this session's answers, which other sites cannot. It is made
    /// from the session's, one way, so that a page that was loaded again can be told it, and nothing is kept.
    pub fn csrf(&self) -> String {
        hex(&blake3::derive_key("seckill admin csrf 2026", self.0.as_bytes()))
    }

    /// Hashes are compared, which blake3 does in constant time.
    pub fn is_csrf(&self, given: &str) -> bool {
        blake3::hash(given.as_bytes()) == blake3::hash(self.csrf().as_bytes())
    }
}

fn hex(bytes: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*bytes).to_hex().to_string()
}

/// Somebody who has just signed in.
pub struct SignedIn {
    pub token: SessionToken,
    pub role: AccountRole,
    pub expires_at_ms: i64,
}

/// No application is called like this (names begin with a letter or a digit), so that these counters are nobody's else.
const SLOTS: &str = "-admin";

impl Console {
    /// Signs in who knows the password. A name that nobody has takes as long, and is answered as a wrong password is.
    pub async fn sign_in(&self, name: &str, password: String, address: &str) -> Result<SignedIn, AdminError> {
        let name = AccountName::parse(name, "name")?;
        if password.len() > NewPassword::MAX_BYTES {
            return Err(Invalid::new("password", "must be at most 1024 bytes").into());
        }
        self.count_attempt(&name, address).await?;
        let hash = self.ledger.password_hash(&name).await?;
        if !self.hasher.verify(password, hash).await? {
            let details = json!({ "address": address });
            self.ledger.record("somebody", "sign-in refused", &format!("account {name}"), details).await?;
            return Err(AdminError::WrongCredentials);
        }
        let token = SessionToken::new();
        let hash = token.hash();
        let opened = self.ledger.open_session(hash.as_bytes(), &name, self.terms.session_ms, address);
        let (role, expires_at_ms) = opened.await?;
        Ok(SignedIn { token, role, expires_at_ms })
    }

    /// Both limits or none. Where the limiter cannot be asked, nobody signs in: tries that nobody counts are free.
    async fn count_attempt(&self, name: &AccountName, address: &str) -> Result<(), AdminError> {
        let slot = |policy, key| SlotKey::new(SLOTS, policy, key, false).map_err(|_| GateError::InvalidRequest);
        let slots = [slot("login-account", name.as_str())?, slot("login-address", address)?];
        let take = |slot| Take { slot, algorithm: &self.attempts, permits: 1, lease: None };
        let answer = self.limiter.acquire(&slots.each_ref().map(take)).await?;
        let refused = ["account", "address"].into_iter().zip(answer.verdicts.into_iter().flatten());
        match refused.filter(|(_, verdict)| !verdict.granted).max_by_key(|(_, verdict)| verdict.retry_after_ms) {
            None => Ok(()),
            Some((limit, verdict)) => Err(AdminError::TooMany {
                limit,
                max: self.terms.login_limit,
                window_ms: self.terms.login_window_ms.unsigned_abs(),
                retry_ms: verdict.retry_after_ms.unsigned_abs(),
            }),
        }
    }

    /// Who is signed in by this token, and until when.
    pub async fn account(&self, token: &SessionToken) -> Result<(Account, i64), AdminError> {
        let found = self.ledger.session(token.hash().as_bytes(), self.terms.idle_ms).await?;
        found.ok_or(AdminError::SignedOut)
    }

    pub async fn sign_out(&self, token: &SessionToken) -> Result<(), AdminError> {
        Ok(self.ledger.close_session(token.hash().as_bytes()).await?)
    }

    /// Writes down what an account tried and may not.
    pub async fn refused(&self, account: &Account, what: &str, why: &str) -> Result<(), AdminError> {
        Ok(self.ledger.record(account.name.as_str(), "refused", what, json!({ "why": why })).await?)
    }
}
