//! Compares our books with each channel's: every movement of money must be in both, once, with the same amount.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::future::try_join_all;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::{PayError, PaymentService};
use seckill_channel::{BooksPage, Channel};

/// How long to wait for payments and refunds in flight.
const PATIENCE: Duration = Duration::from_secs(10);
const COMPARE_EVERY: Duration = Duration::from_millis(500);
const SHOWN: usize = 20;

#[derive(Debug, Clone, Serialize)]
pub struct ChannelVerdict {
    pub channel: String,
    pub held: bool,
    pub movements: usize,
    /// Of these, movements that are missing from our books because no report has arrived yet.
    pub under_way: usize,
    pub differences: Vec<String>,
}

impl PaymentService {
    /// Compares with every channel; waits up to 10 s for payments and refunds in flight.
    pub async fn compare(&self) -> Result<Vec<ChannelVerdict>, PayError> {
        self.compare_within(PATIENCE).await
    }

    /// As `compare`, but waits up to `patience`.
    pub async fn compare_within(&self, patience: Duration) -> Result<Vec<ChannelVerdict>, PayError> {
        try_join_all(self.channels.iter().map(async |channel| {
            let deadline = Instant::now() + patience;
            loop {
                let verdict = self.compare_with(channel).await?;
                if (verdict.held && verdict.under_way == 0) || Instant::now() >= deadline {
                    return Ok(verdict);
                }
                sleep(COMPARE_EVERY).await;
            }
        }))
        .await
    }

    async fn compare_with(&self, channel: &Channel) -> Result<ChannelVerdict, PayError> {
        // Our books first: a movement that is only in the channel's books may be new; a movement that is only in ours is wrong.
        let ours: HashSet<Uuid> = self.ledger.payments.moved_through(&channel.name).await?.into_iter().collect();
        let (mut next_page, mut seen) = (Some(0), HashMap::<Uuid, usize>::new());
        let (mut movements, mut under_way, mut differences) = (0, 0, Vec::new());
        while let Some(after) = next_page {
            let books = channel.movements(after).await;
            let BooksPage { movements: page, next } =
                books.map_err(|error| PayError::Books { channel: channel.name.clone(), error })?;
            next_page = next;
            let keys: Vec<Uuid> = page.iter().map(|report| report.about.key()).collect();
            let known = self.ledger.payments.money_by_key(&keys).await?;
            let known: HashMap<_, _> =
                known.into_iter().map(|(key, status, cents, cur)| (key, (status, cents, cur))).collect();
            movements += page.len();
            for report in page {
                let key = report.about.key();
                *seen.entry(key).or_default() += 1;
                match known.get(&key) {
                    None => differences.push(format!("{key}: the channel moved money that we know nothing of")),
                    Some((_, cents, currency)) if (*cents, currency) != (report.amount_cents, &report.currency) => {
                        differences.push(format!(
                            "{key}: {cents} {currency} here, {} {} at the channel",
                            report.amount_cents, report.currency
                        ));
                    }
                    Some((status, ..)) => match status.as_str() {
                        "succeeded" => {}
                        "created" | "sending" | "waiting" | "requested" => under_way += 1,
                        other => differences.push(format!("{key}: {other} here, and the channel has moved the money")),
                    },
                }
            }
        }
        let twice = seen.iter().filter(|(_, times)| **times > 1);
        differences.extend(twice.map(|(key, times)| format!("{key}: moved {times} times at the channel")));
        let missing = ours.iter().filter(|key| !seen.contains_key(key));
        differences.extend(missing.map(|key| format!("{key}: moved here, and not at the channel")));
        let held = differences.is_empty();
        differences.truncate(SHOWN);
        Ok(ChannelVerdict { channel: channel.name.clone(), held, movements, under_way, differences })
    }
}
