//! Passwords, hashed by Argon2id. Hashing is slow and uses much memory on purpose, so it has threads of its own: few, with a
//! line of bounded length before them, and behind all other threads where processors are short.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use argon2::password_hash::{self, PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use seckill_config as config;
use seckill_domain::account::NewPassword;
use seckill_domain::pressure::Pressure;
use seckill_runtime::low_priority;

/// OWASP's recommendation: 19 MiB, two passes, one lane.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
const LANES: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum HashingError {
    #[error("password hashing: {0}")]
    Hash(#[from] password_hash::Error),
    #[error("password hashing: {0}")]
    Parameters(#[from] argon2::Error),
    #[error("password hashing: cannot start a thread: {0}")]
    Thread(#[from] io::Error),
    #[error("too many passwords are being checked at once")]
    Busy,
}

struct Job {
    task: Box<dyn FnOnce() + Send>,
    place: Option<OwnedSemaphorePermit>,
}

/// Verifies and hashes passwords, a few at once. Its threads end when it is dropped.
pub(super) struct Hasher {
    line: SyncSender<Job>,
    /// Places in the line for those whom the account does not know: half of it.
    strangers: Arc<Semaphore>,
    /// The hash of a random password. An unknown account is compared with it, so that the answer takes as long.
    unknown_account: String,
    /// A caller that waits longer is told to retry.
    wait_max: Duration,
}

impl Hasher {
    /// Starts the threads. After each hash a thread rests while purchases wait, as reads do.
    pub(super) fn start(terms: &config::Admin, pressure: &Arc<Pressure>) -> Result<Self, HashingError> {
        let unknown_account = hash(&rand::random::<[u8; 32]>())?;
        let (line, jobs) = sync_channel(terms.hash_line_max);
        let jobs = Arc::new(Mutex::new(jobs));
        for n in 0..terms.hash_threads {
            let (jobs, pressure) = (Arc::clone(&jobs), Arc::clone(pressure));
            low_priority::spawn(format!("passwords-{n}"), move || work(&jobs, &pressure))?;
        }
        let strangers = Arc::new(Semaphore::new((terms.hash_line_max / 2).max(1)));
        let wait_max = Duration::from_millis(terms.hash_wait_max_ms);
        Ok(Self { line, strangers, unknown_account, wait_max })
    }

    /// Whether the password matches the hash. Without a hash it does not, and the answer takes as long.
    pub(super) async fn verify(
        &self,
        password: String,
        hash: Option<String>,
        is_stranger: bool,
    ) -> Result<bool, HashingError> {
        let place = match is_stranger {
            true => Some(Arc::clone(&self.strangers).try_acquire_owned().map_err(|_| HashingError::Busy)?),
            false => None,
        };
        let is_known = hash.is_some();
        let hash = hash.unwrap_or_else(|| self.unknown_account.clone());
        // The hash itself says with which parameters to verify.
        let verify = move || Argon2::default().verify_password(password.as_bytes(), hash.as_str()).is_ok();
        Ok(self.run(place, verify).await? && is_known)
    }

    pub(super) async fn hash(&self, password: NewPassword) -> Result<String, HashingError> {
        self.run(None, || hash_new(password)).await?
    }

    async fn run<T: Send + 'static>(
        &self,
        place: Option<OwnedSemaphorePermit>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HashingError> {
        let (reply, answer) = oneshot::channel();
        let task = move || {
            // A caller that has gone needs no answer.
            if !reply.is_closed() {
                _ = reply.send(work());
            }
        };
        self.line.try_send(Job { task: Box::new(task), place }).map_err(|_| HashingError::Busy)?;
        timeout(self.wait_max, answer).await.ok().and_then(Result::ok).ok_or(HashingError::Busy)
    }
}

fn work(jobs: &Mutex<Receiver<Job>>, pressure: &Pressure) {
    loop {
        let job = jobs.lock().recv();
        let Ok(Job { task, place }) = job else { return };
        // The place in the line is free.
        drop(place);
        let began = Instant::now();
        task();
        std::thread::sleep(pressure.read_rest(began.elapsed(), Instant::now()));
    }
}

/// The hash of a new password, with a random salt. Blocks for about 20 ms: for the command line, and for the threads above.
pub fn hash_new(password: NewPassword) -> Result<String, HashingError> {
    hash(password.into_text().as_bytes())
}

fn hash(password: &[u8]) -> Result<String, HashingError> {
    let parameters = Params::new(MEMORY_KIB, PASSES, LANES, None)?;
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, parameters);
    Ok(argon2.hash_password_with_salt(password, &rand::random::<[u8; 16]>())?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use seckill_domain::account::AccountName;

    /// The thread itself cannot be stopped, so that the line has none here.
    #[tokio::test]
    async fn a_full_line_refuses_at_once_and_callers_that_have_gone_cost_nothing() {
        let pressure = Arc::new(Pressure::new(Instant::now(), Duration::from_millis(100)));
        let (line, jobs) = sync_channel(3);
        let strangers = Arc::new(Semaphore::new(1));
        let wait_max = Duration::from_secs(120);
        let hasher = Hasher { line, strangers, unknown_account: hash(b"nobody").unwrap(), wait_max };
        let good = "a good phrase to pass by";
        let known = hash(good.as_bytes()).unwrap();
        let right = || hasher.verify(good.into(), Some(known.clone()), false);
        let unknown = hasher.verify("nobody".into(), None, true);
        let crowd = async {
            for _ in 0..100 {
                assert!(matches!(hasher.verify("guess".into(), None, true).await, Err(HashingError::Busy)));
            }
            assert!(matches!(right().await, Err(HashingError::Busy)), "the whole line is full");
            std::thread::spawn(move || work(&Mutex::new(jobs), &pressure));
        };
        let (first, unknown, second, ()) = tokio::join!(right(), unknown, right(), crowd);
        assert!(first.unwrap() && second.unwrap(), "a password that is right, behind strangers");
        assert!(!unknown.unwrap(), "an account that does not exist");
        assert!(!hasher.verify("another password".into(), Some(known.clone()), false).await.unwrap());
        let of = AccountName::parse("ann", "name").unwrap();
        let new = || NewPassword::parse(good.into(), &of).unwrap();
        let fresh = hasher.hash(new()).await.unwrap();
        assert!(fresh != known && hasher.verify(good.into(), Some(fresh), false).await.unwrap());
    }
}
