//! Asking for permits, and the answer: the words that guard.rs and whoever calls it have in common.

use std::fmt;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::domain::ids::Invalid;
use crate::domain::policy::Name;

/// One policy that is asked, and for whom.
#[derive(Debug)]
pub struct PermitRequest {
    pub(super) policy: Name,
    pub(super) key: String,
    pub(super) permits: i64,
}

impl PermitRequest {
    const KEY_MAX_BYTES: usize = 128;

    pub fn new(policy: &str, key: String, permits: Option<i64>) -> Result<Self, Invalid> {
        if key.len() > Self::KEY_MAX_BYTES {
            return Err(Invalid::new("key", "must be at most 128 bytes"));
        }
        let permits = permits.unwrap_or(1);
        if permits < 1 {
            return Err(Invalid::new("permits", "must be at least 1"));
        }
        Ok(Self { policy: Name::parse(policy, "policy")?, key, permits })
    }
}

/// What a grant is given back by: its id, and when it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub id: Uuid,
    granted_ms: u64,
}

impl Lease {
    pub(super) fn now() -> Self {
        Self { id: Uuid::new_v4(), granted_ms: wall_ms() }
    }

    /// As it was told.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let parts = text.split_once('.').and_then(|(id, at)| {
            Some(Self { id: Uuid::try_parse(id).ok()?, granted_ms: u64::from_str_radix(at, 16).ok()? })
        });
        parts.ok_or(Invalid::new("lease", "is none that was given out"))
    }

    /// How long ago it was granted. Instances' clocks differ: what cannot be is not believed.
    pub(super) fn age_ms(self) -> u64 {
        Some(wall_ms().saturating_sub(self.granted_ms)).filter(|ms| *ms < 3_600_000).unwrap_or(0)
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.id, self.granted_ms)
    }
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(0)
}

/// Why an answer is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    Limit,
    Breaker,
    QueueFull,
    /// The limiter's Redis cannot be asked: the policy says what then.
    LimiterDown,
    /// It would have been refused, but the policy only counts.
    Shadow,
}

/// The limit that an answer was given under, for its headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    pub policy: Name,
    pub permits: i64,
    pub window_s: Option<u64>,
    pub reset_ms: u64,
}

/// What became of a request.
#[derive(Debug, Default)]
pub struct PermitAnswer {
    /// 1 granted, -1 refused, 0 not configured.
    pub code: i8,
    pub remaining: i64,
    pub retry_after_ms: u64,
    pub lease: Option<Lease>,
    pub policy: Option<Name>,
    pub why: Option<Reason>,
    pub body: Option<Value>,
    pub delay_ms: Option<u64>,
    pub quota: Option<Quota>,
}
