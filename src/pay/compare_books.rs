//! Our books against a channel's: every movement of money must stand in both, once, and alike.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::{PayError, PaymentService};
use crate::channel::Channel;

/// How long to wait for what is under way.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(500);
const SHOWN: usize = 20;

/// What came of comparing.
#[derive(Debug, Clone, Serialize)]
pub struct ChannelVerdict {
    pub channel: String,
    pub held: bool,
    /// Movements in the channel's books.
    pub movements: usize,
    /// ... that ours do not have yet, because nothing has been heard of them.
    pub under_way: usize,
    pub differences: Vec<String>,
}

impl PaymentService {
    /// Compares with every channel; waits up to 10 s for what is under way.
    pub async fn compare(&self) -> Result<Vec<ChannelVerdict>, PayError> {
        let mut verdicts = Vec::new();
        for channel in self.channels.iter() {
            let deadline = Instant::now() + PATIENCE;
            loop {
                let verdict = self.compare_with(channel).await?;
                if (verdict.held && verdict.under_way == 0) || Instant::now() >= deadline {
                    verdicts.push(verdict);
                    break;
                }
                sleep(LOOK_EVERY).await;
            }
        }
        Ok(verdicts)
    }

    async fn compare_with(&self, channel: &Channel) -> Result<ChannelVerdict, PayError> {
        // Ours first: what the channel has beyond it may be news, what it lacks is wrong.
        let ours: HashSet<Uuid> = self.ledger.moved_through(channel.name).await?.into_iter().collect();
        let (mut after, mut seen) = (0, HashMap::<Uuid, usize>::new());
        let (mut movements, mut under_way, mut differences) = (0, 0, Vec::new());
        loop {
            let (page, next) = channel.movements(after).await.map_err(PayError::Books)?;
            let keys: Vec<Uuid> = page.iter().map(|told| told.about.key()).collect();
            let known = self.ledger.money_by_key(&keys).await?;
            let known: HashMap<_, _> =
                known.into_iter().map(|(key, status, cents, cur)| (key, (status, cents, cur))).collect();
            movements += page.len();
            for told in page {
                let key = told.about.key();
                *seen.entry(key).or_default() += 1;
                match known.get(&key) {
                    None => differences.push(format!("{key}: the channel moved money that we know nothing of")),
                    Some((_, cents, currency)) if (*cents, currency) != (told.amount_cents, &told.currency) => {
                        differences.push(format!(
                            "{key}: {cents} {currency} here, {} {} at the channel",
                            told.amount_cents, told.currency
                        ));
                    }
                    Some((status, ..)) => match status.as_str() {
                        "succeeded" => {}
                        "created" | "sending" | "waiting" | "requested" => under_way += 1,
                        other => differences.push(format!("{key}: {other} here, and the channel has moved the money")),
                    },
                }
            }
            match next {
                Some(next) => after = next,
                None => break,
            }
        }
        let twice = seen.iter().filter(|(_, times)| **times > 1);
        differences.extend(twice.map(|(key, times)| format!("{key}: moved {times} times at the channel")));
        let missing = ours.iter().filter(|key| !seen.contains_key(key));
        differences.extend(missing.map(|key| format!("{key}: moved here, and not at the channel")));
        let held = differences.is_empty();
        differences.truncate(SHOWN);
        Ok(ChannelVerdict { channel: channel.name.to_owned(), held, movements, under_way, differences })
    }
}
