//! Passwords: hashed by Argon2id, which is slow and large on purpose; so it runs beside the threads that answer, and only
//! so often at once.

use std::sync::Arc;
use std::time::Duration;

use argon2::password_hash::{self, PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::domain::account::NewPassword;

/// What OWASP's cheat sheet recommends: 19 MiB, two passes, one lane.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
const LANES: u32 = 1;

/// Each takes a core for some 20 ms, and 19 MiB; the sale goes on beside it.
const AT_ONCE: usize = 2;
/// Who waits longer for a turn is told to come back.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum HashingError {
    #[error("password hashing: {0}")]
    Hash(#[from] password_hash::Error),
    #[error("password hashing: {0}")]
    Parameters(#[from] argon2::Error),
    #[error("too many passwords are being checked at once")]
    Busy,
}

pub struct Hasher {
    turns: Arc<Semaphore>,
    /// Of a password that nobody knows: what is compared where there is no such account, so that it takes as long.
    nobodys: String,
}

impl Hasher {
    pub fn new() -> Result<Self, HashingError> {
        let nobodys = hash(&rand::random::<[u8; 32]>())?;
        Ok(Self { turns: Arc::new(Semaphore::new(AT_ONCE)), nobodys })
    }

    /// Whether the password is the one of this hash; where there is no hash, it is not, and it takes as long to say so.
    pub async fn verify(&self, password: String, against: Option<String>) -> Result<bool, HashingError> {
        let turn = timeout(PATIENCE, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(HashingError::Busy) };
        let known = against.is_some();
        let hash = against.unwrap_or_else(|| self.nobodys.clone());
        let verified = spawn_blocking(move || {
            // The turn ends with the work, not with a caller who hangs up.
            let _turn = turn;
            // Its cost is what the hash itself says.
            Argon2::default().verify_password(password.as_bytes(), hash.as_str()).is_ok()
        });
        Ok(verified.await.map_err(|_| HashingError::Busy)? && known)
    }
}

/// A hash of a new password, with a salt of its own. Takes its time: for the command line.
pub fn hash_new(password: NewPassword) -> Result<String, HashingError> {
    hash(password.into_text().as_bytes())
}

fn hash(password: &[u8]) -> Result<String, HashingError> {
    let parameters = Params::new(MEMORY_KIB, PASSES, LANES, None)?;
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, parameters);
    Ok(argon2.hash_password_with_salt(password, &rand::random::<[u8; 16]>())?.to_string())
}
