//! Shared parts of the causes: buyers at an instance, and changes behind the service's back.

use std::net::SocketAddr;
use std::time::Duration;

use seckill_harness::{Sale, System, eventually, until};
use tokio::time::sleep;
use uuid::Uuid;

use super::drill::Drill;
use crate::flow::callers_apart::{keys, redis};

/// A system under drill, as its causes see it.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    pub drill: &'a Drill,
    pub system: &'a System,
    /// The instance that sells.
    pub at: SocketAddr,
}

impl Scene<'_> {
    /// Buys a unit, and repeats until the purchase is accepted. Returns the order.
    pub async fn bought(&self, sale: &Sale, user: &str) -> Uuid {
        eventually(|| async {
            let click = self.system.buy_at(self.at, sale, user).idempotent("k");
            let answer = click.try_send().await.map_err(|error| error.to_string())?;
            if answer.status == 202 { Ok(answer.order_id().parse().unwrap()) } else { Err(answer.code()) }
        })
        .await
    }

    /// A new buyer in each iteration, without end.
    pub async fn buyers(&self, sale: &Sale, pause: Duration) {
        loop {
            let user = format!("u{}", Uuid::new_v4().simple());
            _ = self.system.buy_at(self.at, sale, &user).try_send().await;
            sleep(pause).await;
        }
    }

    /// Forgets the counts of the last minute under a policy, in a loop, so that nobody waits for it.
    pub async fn forget_counts(&self, policy: &str) -> ! {
        let policies = self.system.stores.ledger.policies.policies(None).await.unwrap();
        let found = policies.iter().find(|one| one.terms.name.to_string() == policy).unwrap();
        loop {
            for counts in keys(self.system, &format!("figures:{{{}}}:", found.id)).await {
                redis::<i64>(self.system, &["DEL", &counts]).await;
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// Waits until a query about a sale counts this number of rows.
    pub async fn counts(&self, sql: &'static str, sale: &Sale, wanted: i64) {
        until(wanted, || self.system.count(sql, sale)).await;
    }
}
