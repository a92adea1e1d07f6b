//! Signing in and out. Attempts are limited, and no answer shows which names exist.

use serde_json::json;

use super::device::Device;
use super::{AdminError, Office, admins_only};
use seckill_domain::account::{Account, AccountName, AccountRole, NewPassword};
use seckill_domain::ids::Invalid;
use seckill_postgres::audit_log::NewLine;

pub use super::device::KNOWN_DAYS;

/// The secret that a browser's cookie holds: 32 random bytes in hex. The database keeps only a hash.
pub(crate) struct SessionToken(String);

/// Makes sessions' tokens, and tells them from invented ones without asking PostgreSQL: the second half of a token is a
/// signature of the first.
pub(super) struct SessionTokens {
    secret: [u8; 32],
}

impl SessionTokens {
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        Self { secret: blake3::derive_key("seckill admin session 2026", secret) }
    }

    fn issue(&self) -> SessionToken {
        let random = uuid::Uuid::from_u128(rand::random()).simple().to_string();
        let signature = self.signature(&random);
        SessionToken(format!("{random}{signature}"))
    }

    fn verify(&self, text: String) -> Option<SessionToken> {
        let (random, signature) = text.split_at_checked(32)?;
        // Compared as hashes, which blake3 does in constant time.
        let is_ours = blake3::hash(signature.as_bytes()) == blake3::hash(self.signature(random).as_bytes());
        is_ours.then_some(SessionToken(text))
    }

    fn signature(&self, random: &str) -> String {
        let mut signature = blake3::keyed_hash(&self.secret, random.as_bytes()).to_hex().to_string();
        signature.truncate(32);
        signature
    }
}

impl SessionToken {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    fn hash(&self) -> blake3::Hash {
        blake3::hash(self.0.as_bytes())
    }

    /// The token against forgery. Other sites cannot learn it, because they cannot read this session's answers. It is
    /// derived from the session's token, one way, so that nothing is stored and a reloaded page can ask for it again.
    pub(crate) fn csrf(&self) -> String {
        let key = blake3::derive_key("seckill admin csrf 2026", self.0.as_bytes());
        blake3::Hash::from_bytes(key).to_hex().to_string()
    }

    /// Compares hashes, which blake3 does in constant time.
    pub(crate) fn is_csrf(&self, text: &str) -> bool {
        blake3::hash(text.as_bytes()) == blake3::hash(self.csrf().as_bytes())
    }
}

pub(crate) struct SignedIn {
    pub(crate) token: SessionToken,
    /// By which the browser is known again. It gives no right.
    pub(crate) device_token: String,
    pub(crate) role: AccountRole,
    pub(crate) expires_at_ms: i64,
}

pub(crate) struct Source {
    pub(crate) address: String,
    pub(crate) device_token: Option<String>,
    pub(crate) now_ms: i64,
}

/// An attempt to sign in that has been counted for its browser or its address.
pub(crate) struct Attempt {
    name: AccountName,
    password: String,
    source: Source,
    device: Option<Device>,
}

/// An attempt whose password may be checked: it has been counted under all limits.
pub(crate) struct Candidate {
    attempt: Attempt,
    password_hash: Option<String>,
    is_known: bool,
}

pub(crate) struct CheckedCandidate {
    attempt: Attempt,
    /// The hash that the password was checked against, if it was right.
    password_hash: Option<String>,
    account_exists: bool,
}

impl Attempt {
    pub(crate) const fn has_known_browser(&self) -> bool {
        self.device.is_some()
    }
}

impl CheckedCandidate {
    pub(crate) const fn is_right(&self) -> bool {
        self.password_hash.is_some()
    }
}

impl Office {
    pub(crate) async fn attempt(&self, name: &str, password: String, source: Source) -> Result<Attempt, AdminError> {
        let name = AccountName::parse(name, "name")?;
        // No account has a password of more bytes.
        if password.chars().count() > NewPassword::MAX_BYTES {
            return Err(Invalid::new("password", "must be at most 1024 characters").into());
        }
        let token = source.device_token.as_deref();
        let device = token.and_then(|token| self.devices.verify(token, &name, source.now_ms));
        match &device {
            Some(device) => self.attempts.count_at_device(&name, &device.id).await?,
            None => self.attempts.count_at_address(&name, &source.address).await?,
        }
        Ok(Attempt { name, password, source, device })
    }

    /// Looks up the account, and counts the attempt for the account if it is a stranger's.
    pub(crate) async fn look_up(&self, attempt: Attempt) -> Result<Candidate, AdminError> {
        let found = self.ledger.accounts.sign_in_terms(&attempt.name, &attempt.source.address, KNOWN_DAYS).await?;
        let is_known = attempt.device.is_some() || found.as_ref().is_some_and(|found| found.address_is_known);
        if !is_known {
            self.attempts.count_stranger(&attempt.name).await?;
        }
        Ok(Candidate { attempt, password_hash: found.map(|found| found.password_hash), is_known })
    }

    /// Checks the password. For an unknown name that takes as long.
    pub(crate) async fn check_password(&self, candidate: Candidate) -> Result<CheckedCandidate, AdminError> {
        let Candidate { mut attempt, password_hash, is_known } = candidate;
        let password = std::mem::take(&mut attempt.password);
        let account_exists = password_hash.is_some();
        let is_right = self.hasher.verify(password, password_hash.clone(), !is_known).await?;
        Ok(CheckedCandidate { attempt, password_hash: password_hash.filter(|_| is_right), account_exists })
    }

    /// Opens a session if the password was right. An unknown name gets the same answer as a wrong password.
    pub(crate) async fn sign_in(&self, checked: CheckedCandidate) -> Result<SignedIn, AdminError> {
        let CheckedCandidate { attempt: Attempt { name, source, device, .. }, password_hash, account_exists } = checked;
        let token = self.sessions.issue();
        let token_hash = token.hash();
        if let Some(password_hash) = &password_hash {
            let (hash, session_ms) = (token_hash.as_bytes(), self.session_ms);
            let opened =
                self.ledger.accounts.open_session(hash, &name, password_hash, session_ms, &source.address).await?;
            if let Some((role, expires_at_ms)) = opened {
                let device_token = self.devices.issue(&name, device.as_ref(), source.now_ms);
                return Ok(SignedIn { token, device_token, role, expires_at_ms });
            }
        }
        // Guesses at names that no account has are counted together, so that they bury no guess at an account.
        let counted = if account_exists { format!("guesses at {name}") } else { "guesses".to_owned() };
        let line = NewLine {
            actor: "anonymous",
            action: "sign-in refused",
            subject: &format!("account {name}"),
            details: json!({ "address": source.address }),
        };
        self.ledger.accounts.record_bounded(&counted, line).await?;
        Err(AdminError::WrongCredentials)
    }

    pub(crate) fn received(&self, text: String) -> Result<SessionToken, AdminError> {
        self.sessions.verify(text).ok_or(AdminError::SignedOut)
    }

    pub(crate) async fn account(&self, token: &SessionToken) -> Result<(Account, i64), AdminError> {
        let found = self.ledger.accounts.session(token.hash().as_bytes(), self.idle_ms).await?;
        found.ok_or(AdminError::SignedOut)
    }

    pub(crate) async fn sign_out(&self, token: &SessionToken) -> Result<(), AdminError> {
        Ok(self.ledger.accounts.close_session(token.hash().as_bytes()).await?)
    }

    /// Ends all sessions of the account or, for an admin, of another one. Returns how many there were.
    pub(crate) async fn sign_out_everywhere(
        &self,
        account: &Account,
        of: Option<&AccountName>,
    ) -> Result<u64, AdminError> {
        let of = of.unwrap_or(&account.name);
        if *of != account.name {
            admins_only(account)?;
        }
        let ended = self.ledger.accounts.close_sessions(of, account.name.as_str()).await?;
        ended.ok_or(AdminError::Unknown("account"))
    }

    /// Records in the audit log what an account attempted and was refused. Nobody fills the log so: a minute has room for
    /// some refusals of each account.
    pub(crate) async fn record_refusal(&self, account: &Account, attempt: &str, why: &str) -> Result<(), AdminError> {
        let actor = account.name.as_str();
        let line = NewLine { actor, action: "refused", subject: attempt, details: json!({ "why": why }) };
        Ok(self.ledger.accounts.record_bounded(&format!("refusals of {actor}"), line).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invented_token_is_told_from_an_issued_one() {
        let (tokens, others) = (SessionTokens::new(&[1; 32]), SessionTokens::new(&[2; 32]));
        let issued = tokens.issue().as_str().to_owned();
        assert_eq!(issued.len(), 64);
        assert!(tokens.verify(issued.clone()).is_some());
        assert!(others.verify(issued.clone()).is_none());
        let (longer, other) = (format!("{issued}0"), format!("0{}", &issued[1..]));
        let other = if other == issued { format!("1{}", &issued[1..]) } else { other };
        for wrong in [&longer[..], &other, &issued[..63], &issued[..32], "", "x", &"ü".repeat(32), &"a".repeat(64)] {
            assert!(tokens.verify(wrong.to_owned()).is_none(), "{wrong}");
        }
    }
}
