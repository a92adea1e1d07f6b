//! What was asked of each policy, by the second, kept for an hour.

use std::collections::BTreeMap;

use redis::{cmd, pipe};

use super::{Gate, GateError};

/// How long seconds are kept: an hour, and the minute that is being filled.
const KEPT_S: i64 = 3_660;

/// One policy's counts in one second, in the order of the letters that they are kept under.
pub type Second<const N: usize> = (i64, [u64; N]);

impl Gate {
    /// This server's time in whole seconds since the epoch.
    pub async fn second(&self) -> Result<i64, GateError> {
        let (seconds, _): (i64, i64) = cmd("TIME").query_async(&mut self.connection.clone()).await?;
        Ok(seconds)
    }

    /// Adds an instance's counts to a second of each policy. One hash a policy and minute.
    pub async fn add_figures<const N: usize>(
        &self,
        second: i64,
        letters: [char; N],
        figures: &[(i64, [u64; N])],
    ) -> Result<(), GateError> {
        let mut all = pipe();
        for (policy, counts) in figures {
            let key = self.keys.figures(*policy, second.div_euclid(60));
            for (letter, count) in letters.iter().zip(counts).filter(|(_, count)| **count > 0) {
                all.hincr(&key, format!("{}{letter}", second.rem_euclid(60)), *count).ignore();
            }
            all.expire(&key, KEPT_S).ignore();
        }
        Ok(all.query_async(&mut self.connection.clone()).await?)
    }

    /// A policy's counts in a minute since the epoch, by the second; seconds without any are left out.
    pub async fn figures<const N: usize>(
        &self,
        policy: i64,
        minute: i64,
        letters: [char; N],
    ) -> Result<Vec<Second<N>>, GateError> {
        let key = self.keys.figures(policy, minute);
        let fields: Vec<(String, u64)> = cmd("HGETALL").arg(key).query_async(&mut self.connection.clone()).await?;
        let mut seconds: BTreeMap<i64, [u64; N]> = BTreeMap::new();
        for (field, count) in fields {
            let place = field.chars().last().and_then(|last| letters.iter().position(|letter| *letter == last));
            let second = field.get(..field.len().saturating_sub(1)).and_then(|digits| digits.parse::<i64>().ok());
            if let Some((place, second)) = place.zip(second) {
                seconds.entry(minute * 60 + second).or_insert([0; N])[place] = count;
            }
        }
        Ok(seconds.into_iter().collect())
    }
}
