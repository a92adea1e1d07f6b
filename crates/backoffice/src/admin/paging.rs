//! The parameters that lists share, read from their texts. An empty text is as good as none, because a form sends its empty fields.

use serde_json::json;
use uuid::Uuid;

use super::{AdminError, Office};
use seckill_domain::account::Account;
use seckill_domain::ids::Invalid;
use seckill_postgres::audit_log::NewLine;

/// Entries on a page, unless the caller asks for another number, and at most.
pub(crate) const PAGE: i64 = 100;
const PAGE_MAX: i64 = 1000;

pub(crate) fn given(text: &Option<String>) -> Option<&str> {
    text.as_deref().map(str::trim).filter(|text| !text.is_empty())
}

pub(crate) fn limit(text: &Option<String>) -> Result<i64, Invalid> {
    match given(text).map_or(Ok(PAGE), str::parse) {
        Ok(limit @ 1..=PAGE_MAX) => Ok(limit),
        _ => Err(Invalid::new("limit", "must be 1 to 1000")),
    }
}

impl Office {
    /// Writes to the audit log that an account reads beyond the first page of a list that names buyers. Nobody fills the
    /// log so: a minute has room for some lines of each account.
    pub(super) async fn record_pages(
        &self,
        account: &Account,
        list: &str,
        is_further_page: bool,
        limit: i64,
    ) -> Result<(), AdminError> {
        if !account.sees_buyers() || (!is_further_page && limit <= PAGE) {
            return Ok(());
        }
        let (actor, details) = (account.name.as_str(), json!({ "limit": limit }));
        let line = NewLine { actor, action: "read list", subject: list, details };
        Ok(self.ledger.accounts.record_bounded(&format!("lists of {actor}"), line).await?)
    }
}

pub(crate) fn before_number(text: &Option<String>) -> Result<Option<i64>, Invalid> {
    let wrong = || Invalid::new("before", "must be a whole number of at least 1");
    given(text).map(|text| text.parse::<i64>().ok().filter(|id| *id > 0).ok_or_else(wrong)).transpose()
}

pub(crate) fn before_uuid(text: &Option<String>) -> Result<Option<Uuid>, Invalid> {
    given(text).map(|text| uuid(text, "before")).transpose()
}

pub(crate) fn uuid(text: &str, field: &'static str) -> Result<Uuid, Invalid> {
    Uuid::try_parse(text).map_err(|_| Invalid::new(field, "must be a UUID"))
}

/// Takes off the entry that only shows that there is another page. Returns the last entry of the page in that case.
pub(crate) fn cut<T>(entries: &mut Vec<T>, limit: i64) -> Option<&T> {
    let page = usize::try_from(limit).unwrap_or(usize::MAX);
    let is_last = entries.len() <= page;
    entries.truncate(page);
    if is_last { None } else { entries.last() }
}
