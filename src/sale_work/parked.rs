//! Sending parked messages again, for the console and the command line.

use crate::domain::message::ParkedKind;
use crate::ledger::notices::Topic;
use crate::ledger::{Ledger, LedgerError};

/// Which parked messages are sent again.
#[derive(Debug, Clone, Copy)]
pub enum Parked<'a> {
    All,
    Ids(&'a [i64]),
    Kind(ParkedKind),
}

/// Sends parked messages again, and returns how many there were. A message takes effect once, however often it is sent.
pub async fn retry(ledger: &Ledger, parked: Parked<'_>, actor: &str) -> Result<u64, LedgerError> {
    let rows = match parked {
        // In the ledger, no ids mean all rows.
        Parked::Ids([]) => 0,
        Parked::Ids(ids) => ledger.unpark(ids, actor).await?,
        Parked::All => ledger.unpark(&[], actor).await?,
        Parked::Kind(kind) => ledger.unpark_kind(kind, actor).await?,
    };
    // Without the notices, workers find the rows by their next poll.
    for topic in [Topic::Outbox, Topic::Orders] {
        if rows > 0
            && let Err(error) = ledger.notify(topic).await
        {
            tracing::debug!(%error, "notice not sent; workers poll");
        }
    }
    Ok(rows)
}
