//! Limits attempts to sign in, so that nobody can guess passwords, and nobody can shut anybody out by guessing.
//! docs/security.md has the table.

use super::AdminError;
use seckill_domain::account::AccountName;
use seckill_domain::limiter::{Algorithm, AlgorithmKind, Parameters, SlotKey, WrongParameter};
use seckill_redis::limiter::{Limiter, Take};

/// The application of these counters. No real one has this name, because names begin with a letter or a digit.
const SLOTS: &str = "-admin";

/// What one address may attempt at all accounts, in attempts at one account.
const ADDRESS_FACTOR: i64 = 3;
/// What all strangers together may attempt at one account, in a longer window. One address alone reaches six tenths of it.
const ACCOUNT_FACTOR: i64 = 10;
const ACCOUNT_WINDOW_FACTOR: i64 = 6;
/// The longest window of a limiter: 31 days.
const WINDOW_MAX_MS: i64 = 2_678_400_000;

struct AttemptLimit {
    name: &'static str,
    max: i64,
    window_ms: i64,
    algorithm: Algorithm,
}

impl AttemptLimit {
    fn new(name: &'static str, kind: AlgorithmKind, max: i64, window_ms: i64) -> Result<Self, WrongParameter> {
        let parameters = Parameters { limit: Some(max), window_ms: Some(window_ms), ..Parameters::default() };
        Ok(Self { name, max, window_ms, algorithm: Algorithm::new(kind, &parameters)? })
    }
}

pub(super) struct AttemptLimits {
    limiter: Limiter,
    /// Without a budget of keys: each known browser has signed in before. Strangers who fill the budget keep no known browser out.
    of_devices: Limiter,
    at_address: AttemptLimit,
    address: AttemptLimit,
    account: AttemptLimit,
    device: AttemptLimit,
}

impl AttemptLimits {
    /// `max` attempts at one account from one address, or by one known browser, in any window of this length.
    pub(super) fn new(limiter: Limiter, max: i64, window_ms: i64) -> Result<Self, WrongParameter> {
        // A sliding log is exact; the larger limits use a counter, whose size does not depend on the limit.
        use AlgorithmKind::{SlidingCounter, SlidingLog};
        let account_window_ms = window_ms.saturating_mul(ACCOUNT_WINDOW_FACTOR).min(WINDOW_MAX_MS);
        Ok(Self {
            of_devices: limiter.without_budget(),
            limiter,
            at_address: AttemptLimit::new("account-address", SlidingLog, max, window_ms)?,
            address: AttemptLimit::new("address", SlidingCounter, max * ADDRESS_FACTOR, window_ms)?,
            account: AttemptLimit::new("account", SlidingCounter, max * ACCOUNT_FACTOR, account_window_ms)?,
            device: AttemptLimit::new("device", SlidingLog, max, window_ms)?,
        })
    }

    pub(super) async fn count_at_address(&self, name: &AccountName, address: &str) -> Result<(), AdminError> {
        self.count(&self.limiter, &[(&self.at_address, &format!("{name} {address}")), (&self.address, address)]).await
    }

    pub(super) async fn count_at_device(&self, name: &AccountName, device: &str) -> Result<(), AdminError> {
        self.count(&self.of_devices, &[(&self.device, &format!("{name} {device}"))]).await
    }

    /// Counts a stranger's attempt: neither the browser nor the address has signed in to this account before.
    pub(super) async fn count_stranger(&self, name: &AccountName) -> Result<(), AdminError> {
        self.count(&self.limiter, &[(&self.account, name.as_str())]).await
    }

    /// Counts an attempt under all of these limits, or under none. Without the limiter there is no sign-in: attempts that
    /// are not counted would be free.
    async fn count(&self, limiter: &Limiter, limits: &[(&AttemptLimit, &str)]) -> Result<(), AdminError> {
        let slot =
            |(limit, key): &(&AttemptLimit, &str)| SlotKey::new(SLOTS, &format!("login-{}", limit.name), key, false);
        let slots: Vec<SlotKey> = limits.iter().map(slot).collect();
        let takes = limits.iter().zip(&slots);
        let takes = takes.map(|((limit, _), slot)| Take {
            slot,
            algorithm: &limit.algorithm,
            permits: 1,
            lease: None,
            has_line: false,
        });
        let answer = limiter.acquire(&takes.collect::<Vec<_>>()).await?;
        let verdicts = limits.iter().zip(answer.verdicts).filter_map(|((limit, _), verdict)| Some((limit, verdict?)));
        let refused = verdicts.filter(|(_, verdict)| !verdict.granted);
        match refused.max_by_key(|(_, verdict)| verdict.retry_after_ms) {
            None => Ok(()),
            Some((limit, verdict)) => Err(AdminError::TooMany {
                limit: limit.name,
                max: limit.max,
                window_ms: limit.window_ms.unsigned_abs(),
                retry_ms: verdict.retry_after_ms.unsigned_abs(),
            }),
        }
    }
}
