//! Signing in and out. Attempts are limited, and no answer shows which names exist.

use serde_json::json;

use super::{AdminError, Console};
use crate::domain::account::{Account, AccountName, AccountRole, NewPassword};
use crate::domain::ids::Invalid;
use crate::domain::limiter::SlotKey;
use crate::gate::GateError;
use crate::gate::limiter::Take;

/// The secret that a browser's cookie holds: 32 random bytes in hex. The database keeps only a hash.
pub struct SessionToken(String);

impl SessionToken {
    fn new() -> Self {
        Self(hex(&rand::random()))
    }

    /// The token that a cookie carried.
    pub fn received(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn hash(&self) -> blake3::Hash {
        blake3::hash(self.0.as_bytes())
    }

    /// The token against forgery. Other sites cannot learn it, because they cannot read this session's answers. It is
    /// derived from the session's token, one way, so that nothing is stored and a reloaded page can ask for it again.
    pub fn csrf(&self) -> String {
        hex(&blake3::derive_key("seckill admin csrf 2026", self.0.as_bytes()))
    }

    /// Compares hashes, which blake3 does in constant time.
    pub fn is_csrf(&self, text: &str) -> bool {
        blake3::hash(text.as_bytes()) == blake3::hash(self.csrf().as_bytes())
    }
}

fn hex(bytes: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*bytes).to_hex().to_string()
}

/// A session that has just begun.
pub struct SignedIn {
    pub token: SessionToken,
    pub role: AccountRole,
    pub expires_at_ms: i64,
}

/// The application of these counters. No real one has this name, because names begin with a letter or a digit.
const SLOTS: &str = "-admin";

/// An attempt to sign in that has been counted.
pub struct Attempt {
    name: AccountName,
    password: String,
    address: String,
}

impl Console {
    /// Checks and counts an attempt to sign in, which costs little.
    ///
    /// # Errors
    /// The name or password cannot be one, `TooMany` attempts, and `Gate` if the limiter does not answer.
    pub async fn attempt(&self, name: &str, password: String, address: String) -> Result<Attempt, AdminError> {
        let name = AccountName::parse(name, "name")?;
        if password.len() > NewPassword::MAX_BYTES {
            return Err(Invalid::new("password", "must be at most 1024 bytes").into());
        }
        self.count_attempt(&name, &address).await?;
        Ok(Attempt { name, password, address })
    }

    /// Opens a session for a name and its password. An unknown name takes as long, and gets the same answer, as a wrong
    /// password.
    ///
    /// # Errors
    /// `WrongCredentials`.
    pub async fn sign_in(&self, attempt: Attempt) -> Result<SignedIn, AdminError> {
        let Attempt { name, password, address } = attempt;
        let hash = self.ledger.password_hash(&name).await?;
        if !self.hasher.verify(password, hash).await? {
            let details = json!({ "address": address });
            self.ledger.record("anonymous", "sign-in refused", &format!("account {name}"), details).await?;
            return Err(AdminError::WrongCredentials);
        }
        let token = SessionToken::new();
        let hash = token.hash();
        let opened = self.ledger.open_session(hash.as_bytes(), &name, self.terms.session_ms, &address);
        let (role, expires_at_ms) = opened.await?;
        Ok(SignedIn { token, role, expires_at_ms })
    }

    /// Counts the attempt under both limits, or under neither. Without the limiter there is no sign-in: attempts that are
    /// not counted would be free.
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

    /// The account whose session this is, and when the session ends, in ms since the epoch.
    pub async fn account(&self, token: &SessionToken) -> Result<(Account, i64), AdminError> {
        let found = self.ledger.session(token.hash().as_bytes(), self.terms.idle_ms).await?;
        found.ok_or(AdminError::SignedOut)
    }

    /// Ends the session.
    pub async fn sign_out(&self, token: &SessionToken) -> Result<(), AdminError> {
        Ok(self.ledger.close_session(token.hash().as_bytes()).await?)
    }

    /// Records in the audit log what an account attempted and was refused.
    pub async fn record_refusal(&self, account: &Account, attempt: &str, why: &str) -> Result<(), AdminError> {
        Ok(self.ledger.record(account.name.as_str(), "refused", attempt, json!({ "why": why })).await?)
    }
}
