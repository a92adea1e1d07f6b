//! How pages write moments.

use chrono::{DateTime, SecondsFormat, Utc};

/// A moment in UTC, such as `2026-01-31T08:00:00Z`.
pub(super) fn iso(ms: &i64) -> String {
    DateTime::<Utc>::from_timestamp_millis(*ms).unwrap_or_default().to_rfc3339_opts(SecondsFormat::Secs, true)
}
