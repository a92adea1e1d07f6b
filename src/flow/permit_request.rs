//! Requests for permits, and their answers.

use std::fmt;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::domain::breaker::{Admission, ProbeId};
use crate::domain::ids::Invalid;
use crate::domain::policy::Name;

/// A request for permits of one policy, under the caller's key.
#[derive(Debug)]
pub struct PermitRequest {
    pub(super) policy: Name,
    pub(super) key: String,
    pub(super) permits: i64,
}

impl PermitRequest {
    /// Characters.
    const KEY_MAX: usize = 128;
    /// No policy grants more at a time.
    const PERMITS_MAX: i64 = 1_000_000_000;

    /// `permits` is 1 where it is missing.
    ///
    /// # Errors
    ///
    /// The field that is wrong.
    pub fn new(policy: &str, key: String, permits: Option<i64>) -> Result<Self, Invalid> {
        if key.chars().count() > Self::KEY_MAX {
            return Err(Invalid::new("key", "must be at most 128 characters"));
        }
        let permits = permits.unwrap_or(1);
        if !(1..=Self::PERMITS_MAX).contains(&permits) {
            return Err(Invalid::new("permits", "must be 1 to 1000000000"));
        }
        Ok(Self { policy: Name::parse(policy, "policy")?, key, permits })
    }
}

/// What a caller gives a grant back by: the id of the grant, when it was granted, and whether it is a breaker's probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub id: Uuid,
    granted_ms: u64,
    is_probe: bool,
}

/// The end of a lease that is a probe.
const PROBE_MARK: &str = ".p";

impl Lease {
    pub(super) fn now(admission: Admission) -> Self {
        Self { id: Uuid::new_v4(), granted_ms: wall_ms(), is_probe: admission == Admission::Probe }
    }

    pub(super) fn probe(self) -> Option<ProbeId> {
        self.is_probe.then_some(self.id.as_u128())
    }

    /// Parses the text that the caller was given.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let hex = |text: &str| (1..=16).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
        let parts = text.split_once('.').and_then(|(id, at)| {
            let (at, is_probe) = at.strip_suffix(PROBE_MARK).map_or((at, false), |at| (at, true));
            // A UUID has other forms too; 36 bytes are the one with hyphens alone.
            if id.len() != 36 || !hex(at) {
                return None;
            }
            Some(Self { id: Uuid::try_parse(id).ok()?, granted_ms: u64::from_str_radix(at, 16).ok()?, is_probe })
        });
        parts.ok_or(Invalid::new("lease", "unknown lease"))
    }

    /// How long ago the lease was granted; 0 for an age above an hour, because the clocks of instances may differ.
    pub(super) fn age_ms(self) -> u64 {
        Some(wall_ms().saturating_sub(self.granted_ms)).filter(|ms| *ms < 3_600_000).unwrap_or(0)
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}{}", self.id, self.granted_ms, if self.is_probe { PROBE_MARK } else { "" })
    }
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(0)
}

/// The reason of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum Reason {
    Limit,
    Breaker,
    QueueFull,
    /// The application's keys take all the memory in Redis that they may take.
    TooManyKeys,
    /// The limiter's Redis cannot be asked; the policy's `when_down` was applied.
    LimiterDown,
    /// The limit would have refused the request, but the policy only counts.
    Shadow,
}

impl Reason {
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// The limit of an answer, for its headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    pub policy: Name,
    pub permits: i64,
    pub window_s: Option<u64>,
    pub reset_ms: u64,
}

/// The answer to a request.
#[derive(Debug, Default)]
pub struct PermitAnswer {
    /// 1 granted, -1 refused, 0 the application has no such policy.
    pub code: i8,
    pub remaining: i64,
    pub retry_after_ms: u64,
    pub lease: Option<Lease>,
    pub policy: Option<Name>,
    pub reason: Option<Reason>,
    /// The prepared answer of a policy that degrades.
    pub body: Option<Value>,
    pub delay_ms: Option<u64>,
    pub quota: Option<Quota>,
}
