//! Passwords, hashed by Argon2id. Hashing is slow and uses much memory on purpose, so it runs outside the threads that
//! answer requests, and only a few hashes run at once.

use std::sync::Arc;
use std::time::Duration;

use argon2::password_hash::{self, PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::domain::account::NewPassword;

/// OWASP's recommendation: 19 MiB, two passes, one lane.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
const LANES: u32 = 1;

/// Each hash takes a core for about 20 ms, and 19 MiB; sales must go on meanwhile.
const CONCURRENT_MAX: usize = 2;
/// A caller that waits longer for its turn is told to retry.
const TURN_TIMEOUT: Duration = Duration::from_secs(3);

/// A password could not be hashed or verified.
#[derive(Debug, thiserror::Error)]
pub enum HashingError {
    #[error("password hashing: {0}")]
    Hash(#[from] password_hash::Error),
    #[error("password hashing: {0}")]
    Parameters(#[from] argon2::Error),
    #[error("too many passwords are being checked at once")]
    Busy,
}

/// Verifies passwords, a few at once.
pub(super) struct Hasher {
    turns: Arc<Semaphore>,
    /// The hash of a random password. An unknown account is compared with it, so that the answer takes as long.
    unknown_account: String,
}

impl Hasher {
    pub(super) fn new() -> Result<Self, HashingError> {
        let unknown_account = hash(&rand::random::<[u8; 32]>())?;
        Ok(Self { turns: Arc::new(Semaphore::new(CONCURRENT_MAX)), unknown_account })
    }

    /// Whether the password matches the hash. Without a hash it does not, and the answer takes as long.
    ///
    /// # Errors
    /// `Busy` if no turn came within 3 s.
    pub(super) async fn verify(&self, password: String, hash: Option<String>) -> Result<bool, HashingError> {
        let turn = timeout(TURN_TIMEOUT, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(HashingError::Busy) };
        let is_known = hash.is_some();
        let hash = hash.unwrap_or_else(|| self.unknown_account.clone());
        let verified = spawn_blocking(move || {
            // The turn ends with the work, not when the caller disconnects.
            let _turn = turn;
            // The hash itself says with which parameters to verify.
            Argon2::default().verify_password(password.as_bytes(), hash.as_str()).is_ok()
        });
        Ok(verified.await.map_err(|_| HashingError::Busy)? && is_known)
    }
}

/// The hash of a new password, with a random salt. Blocks for about 20 ms: for the command line.
pub fn hash_new(password: NewPassword) -> Result<String, HashingError> {
    hash(password.into_text().as_bytes())
}

fn hash(password: &[u8]) -> Result<String, HashingError> {
    let parameters = Params::new(MEMORY_KIB, PASSES, LANES, None)?;
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, parameters);
    Ok(argon2.hash_password_with_salt(password, &rand::random::<[u8; 16]>())?.to_string())
}
