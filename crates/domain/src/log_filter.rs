//! A search in the audit log.

use super::ids::Invalid;

/// The lines that a reader wants. Texts must be equal to the line's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogFilter {
    pub actor: Option<String>,
    pub action: Option<String>,
    pub subject: Option<String>,
    /// From this moment on, and before `to_ms`.
    pub from_ms: Option<i64>,
    pub to_ms: Option<i64>,
    /// Only lines that are older than the one with this id.
    pub before: Option<i64>,
    pub limit: i64,
}

impl LogFilter {
    /// The last moment of the year 9999, which PostgreSQL still knows.
    const TIME_MAX_MS: i64 = 253_402_300_799_999;

    pub fn check(self) -> Result<Self, Invalid> {
        for (field, text, max, problem) in [
            ("actor", &self.actor, 64, "must be 1 to 64 characters, none of them a control character"),
            ("action", &self.action, 64, "must be 1 to 64 characters, none of them a control character"),
            ("subject", &self.subject, 1000, "must be 1 to 1000 characters, none of them a control character"),
        ] {
            let fits = |text: &String| (1..=max).contains(&text.chars().count()) && !text.contains(char::is_control);
            if !text.as_ref().is_none_or(fits) {
                return Err(Invalid::new(field, problem));
            }
        }
        for (field, time) in [("from_ms", self.from_ms), ("to_ms", self.to_ms)] {
            if !time.is_none_or(|ms| (0..=Self::TIME_MAX_MS).contains(&ms)) {
                return Err(Invalid::new(field, "must be 0 to 253402300799999, in milliseconds since the epoch"));
            }
        }
        if self.before.is_some_and(|id| id < 1) {
            return Err(Invalid::new("before", "must be the id of a line, 1 or more"));
        }
        if !(1..=1000).contains(&self.limit) {
            return Err(Invalid::new("limit", "must be 1 to 1000"));
        }
        Ok(self)
    }
}
