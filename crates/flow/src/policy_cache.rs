//! All policies in an instance's memory. The cache follows changes by notices, and by a poll each second.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use arc_swap::ArcSwap;
use uuid::Uuid;

use super::FlowError;
use super::limiter_health::CallsHealth;
use super::policy_state::PolicyState;
use seckill_domain::admission::{Limit, Limits, Window};
use seckill_domain::policy::{HOUSE_APP, Name, Policy};
use seckill_postgres::flow::policies::PolicySet;
use seckill_postgres::{LedgerError, Policies};

/// A policy as one application has it, and its state in this instance.
#[derive(Clone)]
pub(super) struct Entry {
    pub(crate) policy: Arc<Policy>,
    pub(crate) state: Arc<PolicyState>,
    /// This application's calls alone, although others may share the policy.
    pub(crate) calls: CallsHealth,
}

struct Token {
    app: Name,
    ends_at_ms: Option<i64>,
}

#[derive(Default)]
struct Snapshot {
    by_app: HashMap<Name, HashMap<Name, Entry>>,
    /// By hash.
    tokens: HashMap<[u8; 32], Token>,
}

/// The snapshot is replaced as a whole, so that a request sees either the old policies or the new ones.
pub struct PolicyCache {
    ledger: Policies,
    instance: Uuid,
    /// The time-out of calls to the limiter's Redis.
    timeout_ms: u64,
    snapshot: ArcSwap<Snapshot>,
    version: AtomicI64,
    /// The number of live instances, and this one's rank.
    instances: AtomicU32,
    rank: AtomicU32,
}

impl PolicyCache {
    pub async fn load(ledger: Policies, instance: Uuid, timeout_ms: u64) -> Result<Self, FlowError> {
        let cache = Self {
            ledger,
            instance,
            timeout_ms,
            snapshot: ArcSwap::default(),
            version: AtomicI64::new(0),
            instances: AtomicU32::new(1),
            rank: AtomicU32::new(0),
        };
        cache.keep_up(|_| ()).await?; // the service applies them when it starts
        Ok(cache)
    }

    /// Records the version that this instance follows, for which `policy set` waits, and counts the instances. A newer one is loaded, then
    /// `apply` is called, and only then the version is recorded.
    pub async fn keep_up(&self, apply: impl FnOnce(&Self)) -> Result<(), FlowError> {
        let load_changes = async {
            let version = self.version.load(Ordering::Relaxed);
            if self.follow(version).await? == version {
                return Ok(());
            }
            let policies = self.ledger.policies_and_tokens().await?;
            let version = policies.version;
            self.version.store(version, Ordering::Relaxed);
            self.snapshot.store(Arc::new(self.merge(policies)));
            apply(self);
            self.follow(version).await.map(drop)
        };
        Ok(self.ledger.in_time(load_changes).await?)
    }

    /// Records that this instance follows a version; returns the newest one.
    async fn follow(&self, version: i64) -> Result<i64, LedgerError> {
        let followed = self.ledger.record_policy_version(self.instance, version).await?;
        self.instances.store(followed.instances.max(1), Ordering::Relaxed);
        self.rank.store(followed.rank, Ordering::Relaxed);
        Ok(followed.newest)
    }

    /// A policy keeps its state in this instance in its next version.
    fn merge(&self, loaded: PolicySet) -> Snapshot {
        let all_before = self.snapshot.load();
        let before: HashMap<i64, &Entry> =
            all_before.by_app.values().flat_map(HashMap::values).map(|entry| (entry.policy.id, entry)).collect();
        let tokens = loaded.tokens.into_iter();
        let tokens = tokens.map(|token| (token.hash, Token { app: token.app, ends_at_ms: token.ends_at_ms }));
        let mut snapshot = Snapshot { tokens: tokens.collect(), ..Snapshot::default() };
        for policy in loaded.policies {
            let state = match before.get(&policy.id) {
                Some(entry) => entry.state.carried_over(&entry.policy, &policy),
                None => PolicyState::new(&policy),
            };
            let (policy, state) = (Arc::new(policy), Arc::new(state));
            for app in &policy.terms.apps {
                let name = &policy.terms.name;
                let known = all_before.by_app.get(app).and_then(|entries| entries.get(name));
                let calls = known.map_or_else(|| CallsHealth::new(self.timeout_ms), |entry| entry.calls.clone());
                let entry = Entry { policy: Arc::clone(&policy), state: Arc::clone(&state), calls };
                snapshot.by_app.entry(app.clone()).or_default().insert(name.clone(), entry);
            }
        }
        snapshot
    }

    pub(super) fn find(&self, app: &Name, policy: &Name) -> Option<Entry> {
        self.snapshot.load().by_app.get(app)?.get(policy).cloned()
    }

    /// The application of a valid token.
    pub(crate) fn app_of(&self, token: &str, now_ms: i64) -> Option<Name> {
        let snapshot = self.snapshot.load();
        let token = snapshot.tokens.get(blake3::hash(token.as_bytes()).as_bytes())?;
        token.ends_at_ms.is_none_or(|ends_at_ms| now_ms < ends_at_ms).then(|| token.app.clone())
    }

    /// The limits of purchases: the policies `purchase-buyer`, `purchase-address` and `purchase-sale` of this service's own application, or
    /// else `configured`.
    pub fn purchase_limits(&self, configured: Limits) -> Limits {
        let window = |limit: Limit| self.house_window(limit).unwrap_or(configured.of(limit));
        Limits { buyer: window(Limit::Buyer), address: window(Limit::Address), sale: window(Limit::Sale) }
    }

    fn house_window(&self, limit: Limit) -> Option<Window> {
        let house = Name::parse(HOUSE_APP, "app").ok()?;
        let entry = self.find(&house, &Name::parse(&format!("purchase-{}", limit.as_str()), "name").ok()?)?;
        let terms = entry.policy.algorithm.parameters();
        Some(Window { max: terms.limit?, window_ms: terms.window_ms? })
    }

    /// All policies, each once.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let snapshot = self.snapshot.load();
        let by_id: HashMap<i64, Entry> =
            snapshot.by_app.values().flat_map(HashMap::values).map(|entry| (entry.policy.id, entry.clone())).collect();
        by_id.into_values().collect()
    }

    /// This instance's share of a limit, while the instances cannot count together. All shares add up to the limit, so a share may be 0.
    pub(crate) fn share_of(&self, limit: i64) -> i64 {
        let instances = i64::from(self.instances.load(Ordering::Relaxed));
        let rank = i64::from(self.rank.load(Ordering::Relaxed));
        limit / instances + i64::from(rank < limit % instances)
    }
}
