//! Requests for permits, and their answers.

use std::fmt;
use std::time::SystemTime;

use serde::{Serialize, Serializer};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use seckill_domain::breaker::{Admission, ProbeId};
use seckill_domain::ids::Invalid;
use seckill_domain::policy::Name;

#[derive(Debug)]
pub struct PermitRequest {
    pub(super) policy: Name,
    pub(super) key: String,
    pub(super) permits: i64,
}

impl PermitRequest {
    /// `permits` is 1 by default.
    pub fn new(policy: &str, key: String, permits: Option<i64>) -> Result<Self, Invalid> {
        if key.chars().count() > 128 {
            return Err(Invalid::new("key", "must be at most 128 characters"));
        }
        let permits = permits.unwrap_or(1);
        // No policy grants more at a time.
        if !(1..=1_000_000_000).contains(&permits) {
            return Err(Invalid::new("permits", "must be 1 to 1000000000"));
        }
        Ok(Self { policy: Name::parse(policy, "policy")?, key, permits })
    }
}

/// The text by which a caller returns a grant: its id and time, and whether it is a breaker's probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub(crate) id: Uuid,
    granted_ms: u64,
    is_probe: bool,
}

/// Ends the text of a probe's lease.
const PROBE_MARK: &str = ".p";

impl Lease {
    pub(super) fn now(admission: Admission) -> Self {
        Self { id: Uuid::new_v4(), granted_ms: wall_ms(), is_probe: admission == Admission::Probe }
    }

    pub(super) fn probe(self) -> Option<ProbeId> {
        self.is_probe.then_some(self.id.as_u128())
    }

    pub(crate) fn parse(text: &str) -> Result<Self, Invalid> {
        let hex = |text: &str| (1..=16).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
        let parts = text.split_once('.').and_then(|(id, at)| {
            let (at, is_probe) = at.strip_suffix(PROBE_MARK).map_or((at, false), |at| (at, true));
            // Only the form of a UUID with hyphens has 36 bytes.
            if id.len() != 36 || !hex(at) {
                return None;
            }
            Some(Self { id: Uuid::try_parse(id).ok()?, granted_ms: u64::from_str_radix(at, 16).ok()?, is_probe })
        });
        parts.ok_or(Invalid::new("lease", "unknown lease"))
    }

    /// The time since the grant; 0 above an hour, because the clocks of instances may differ.
    pub(super) fn age_ms(self) -> u64 {
        Some(wall_ms().saturating_sub(self.granted_ms)).filter(|ms| *ms < 3_600_000).unwrap_or(0)
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}{}", self.id, self.granted_ms, if self.is_probe { PROBE_MARK } else { "" })
    }
}

impl Serialize for Lease {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub(crate) enum Reason {
    Limit,
    Breaker,
    QueueFull,
    /// The application's keys take all the memory in Redis that they may take.
    TooManyKeys,
    /// The limiter's Redis cannot be asked: the policy's `when_down` applies.
    LimiterDown,
    /// The policy only counts; its limit would have refused the request.
    Shadow,
}

impl Reason {
    pub(crate) const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// The limit of an answer, for its headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) policy: Name,
    pub(crate) permits: i64,
    pub(crate) window_s: Option<u64>,
    pub(crate) reset_ms: u64,
}

/// The answer to a request for permits.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = Verdict)]
pub struct PermitAnswer {
    /// 1: granted. -1: refused. 0: not configured: the application has no such policy, and may proceed.
    #[schema(minimum = -1, maximum = 1)]
    pub code: i8,
    /// Permits that are left; -1 if the policy has no limit.
    pub(crate) remaining: i64,
    /// The retry delay; 0 if granted.
    pub(crate) retry_after_ms: u64,
    /// From a concurrency policy, or one with a breaker: return it with `release`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = String)]
    pub lease: Option<Lease>,
    /// The policy that refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = String)]
    pub(crate) policy: Option<Name>,
    /// Why: `limit`, `breaker`, `queue-full`, `too-many-keys`, `limiter-down`. With code 1: `shadow` (would have been refused), or
    /// `limiter-down` (granted without counting, or counted by this instance alone).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = String)]
    pub(crate) reason: Option<Reason>,
    /// The answer that the policy prescribes for refused callers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) answer: Option<Value>,
    /// From a leaky bucket: how long to wait before proceeding, so that the outflow is constant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) delay_ms: Option<u64>,
    #[serde(skip)]
    pub(crate) quota: Option<Quota>,
}
