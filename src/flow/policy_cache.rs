//! The policies as an instance knows them: all of them, in memory, at most a notice behind.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use arc_swap::ArcSwap;
use uuid::Uuid;

use super::FlowError;
use super::policy_state::PolicyState;
use crate::domain::admission::{Limit, Limits, Window};
use crate::domain::policy::{HOUSE_APP, Name, Policy};
use crate::ledger::Ledger;
use crate::ledger::flow::policies::Policies;

/// A policy, and what this instance has going on under it.
#[derive(Clone)]
pub struct Entry {
    pub policy: Arc<Policy>,
    pub live: Arc<PolicyState>,
}

#[derive(Default)]
struct Pages {
    by_app: HashMap<Name, HashMap<Name, Entry>>,
    tokens: HashMap<[u8; 32], Name>,
}

/// The cache of policies. It is swapped whole: a request sees the old one or the new one, never neither.
pub struct PolicyCache {
    ledger: Ledger,
    instance: Uuid,
    pages: ArcSwap<Pages>,
    version: AtomicI64,
    instances: AtomicU32,
    rank: AtomicU32,
}

impl PolicyCache {
    /// Loads everything there is.
    pub async fn load(ledger: Ledger, instance: Uuid) -> Result<Self, FlowError> {
        let cache = Self {
            ledger,
            instance,
            pages: ArcSwap::default(),
            version: AtomicI64::new(0),
            instances: AtomicU32::new(1),
            rank: AtomicU32::new(0),
        };
        cache.keep_up().await?;
        Ok(cache)
    }

    /// Takes in what has changed, says so, and counts the instances. Returns whether anything was new.
    pub async fn keep_up(&self) -> Result<bool, FlowError> {
        self.ledger.in_time(async { Ok(self.catch_up().await) }).await?
    }

    async fn catch_up(&self) -> Result<bool, FlowError> {
        let version = self.version.load(Ordering::Relaxed);
        let news = self.ledger.policies_since(version).await?;
        let changed = news.is_some();
        if let Some(news) = news {
            self.version.store(news.version, Ordering::Relaxed);
            self.pages.store(Arc::new(self.bind(news)));
        }
        let version = self.version.load(Ordering::Relaxed);
        let (instances, rank) = self.ledger.note_policies(self.instance, version).await?;
        self.instances.store(instances.max(1), Ordering::Relaxed);
        self.rank.store(rank, Ordering::Relaxed);
        Ok(changed)
    }

    /// Puts the news in order. What goes on under a policy goes on under its next version.
    fn bind(&self, news: Policies) -> Pages {
        let old = self.pages.load();
        let going_on: HashMap<i64, &Entry> =
            old.by_app.values().flat_map(HashMap::values).map(|entry| (entry.policy.id, entry)).collect();
        let mut pages = Pages::default();
        for policy in news.policies {
            let before = going_on.get(&policy.id);
            let live = before.map(|entry| entry.live.under(&entry.policy, &policy));
            let live = live.unwrap_or_else(|| Arc::new(PolicyState::new(&policy)));
            let entry = Entry { policy: Arc::new(policy), live };
            for app in &entry.policy.terms.apps {
                pages.by_app.entry(app.clone()).or_default().insert(entry.policy.terms.name.clone(), entry.clone());
            }
        }
        pages.tokens = news.apps.into_iter().collect();
        pages
    }

    /// The policy that an application has under a name.
    pub fn find(&self, app: &Name, policy: &Name) -> Option<Entry> {
        self.pages.load().by_app.get(app)?.get(policy).cloned()
    }

    /// Whose token it is.
    pub fn app_of(&self, token: &str) -> Option<Name> {
        self.pages.load().tokens.get(blake3::hash(token.as_bytes()).as_bytes()).cloned()
    }

    /// The limits of purchases: this service's own policies `purchase-buyer`, `purchase-address` and `purchase-sale`,
    /// and for those that are not there, what the configuration says.
    pub fn purchase_limits(&self, otherwise: Limits) -> Limits {
        let window = |limit: Limit| self.house_window(limit).unwrap_or(otherwise.of(limit));
        Limits { buyer: window(Limit::Buyer), address: window(Limit::Address), sale: window(Limit::Sale) }
    }

    fn house_window(&self, limit: Limit) -> Option<Window> {
        let house = Name::parse(HOUSE_APP, "app").ok()?;
        let entry = self.find(&house, &Name::parse(&format!("purchase-{}", limit.as_str()), "name").ok()?)?;
        let terms = entry.policy.algorithm.parameters();
        Some(Window { max: terms.limit?, window_ms: terms.window_ms? })
    }

    /// Every policy once.
    pub fn entries(&self) -> Vec<Entry> {
        let pages = self.pages.load();
        let all: HashMap<i64, Entry> =
            pages.by_app.values().flat_map(HashMap::values).map(|entry| (entry.policy.id, entry.clone())).collect();
        all.into_values().collect()
    }

    /// This instance's part of a limit that the instances share while they cannot count together. The parts of all
    /// make the limit, so that some have nothing where the limit is small.
    pub fn share_of(&self, limit: i64) -> i64 {
        let instances = i64::from(self.instances.load(Ordering::Relaxed));
        let rank = i64::from(self.rank.load(Ordering::Relaxed));
        limit / instances + i64::from(rank < limit % instances)
    }
}
