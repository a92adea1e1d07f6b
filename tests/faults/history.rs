//! The history of all calls, checked against the end state and against every later call.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use anyhow::{bail, ensure};
use uuid::Uuid;

use crate::world::{Sale, World};

#[derive(Debug, Clone)]
pub struct Call {
    pub user: String,
    pub keyless: bool,
    pub sent: SystemTime,
    pub answered: SystemTime,
    /// 0 when no answer came.
    pub status: u16,
    pub code: String,
    pub order: Option<Uuid>,
    pub order_status: String,
}

impl Call {
    fn answer_text(&self) -> String {
        format!(
            "{} {}{}{}",
            self.status,
            self.code,
            self.order_status,
            self.order.map_or(String::new(), |o| format!(" {o}"))
        )
    }
}

#[derive(Default)]
pub struct History {
    pub calls: Vec<Call>,
}

/// The end state of an order, with its purchase.
struct End {
    user: String,
    status: String,
    purchased: SystemTime,
}

/// PostgreSQL and this process share one clock. The slack covers the time between reading the clock and writing the row.
const SLACK: Duration = Duration::from_millis(100);
const SHOWN: usize = 5;

impl History {
    pub fn merge(&mut self, other: Self) {
        self.calls.extend(other.calls);
    }

    pub fn accepted(&self) -> usize {
        self.calls.iter().filter(|call| call.status == 202).count()
    }

    pub fn count_answers(&self, status: u16, code: &str) -> usize {
        self.calls.iter().filter(|call| call.status == status && call.code == code).count()
    }

    /// Distinct orders that were promised.
    pub fn promises(&self) -> BTreeMap<Uuid, &str> {
        let accepted = self.calls.iter().filter(|call| call.status == 202);
        accepted.filter_map(|call| Some((call.order?, call.user.as_str()))).collect()
    }

    /// Checks every answer of a sale. Call this at rest.
    pub async fn check_against(&self, world: &World, sale: &Sale) -> anyhow::Result<()> {
        let rows: Vec<(Uuid, String, Option<String>, chrono::DateTime<chrono::Utc>)> = sqlx::query_as(
            "SELECT p.order_id, p.user_id, o.status, p.created_at FROM purchase_records p LEFT JOIN orders o ON o.id = p.order_id
             WHERE p.sale_id = $1",
        )
        .bind(sale.id)
        .fetch_all(&world.sql)
        .await?;
        let ends: HashMap<Uuid, End> = rows
            .into_iter()
            .map(|(id, user, status, purchased)| {
                (id, End { user, status: status.unwrap_or_else(|| "accepted".into()), purchased: purchased.into() })
            })
            .collect();
        let mut wrong = Vec::new();
        self.check_promises(&ends, &mut wrong);
        let mut by_user: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
        for call in &self.calls {
            by_user.entry(&call.user).or_default().push(call);
        }
        for calls in by_user.values_mut() {
            calls.sort_by_key(|call| call.sent);
            check_answers(calls, sale.is_shut_for_a_time, &mut wrong);
        }
        let lasting = sale.is_lasting();
        for (order, end) in &ends {
            let calls = by_user.get(end.user.as_str()).map_or(&[][..], Vec::as_slice);
            check_owner(*order, end, calls, lasting, &mut wrong);
        }
        if lasting {
            let mut owners: HashMap<&str, usize> = HashMap::new();
            ends.values().for_each(|end| *owners.entry(end.user.as_str()).or_default() += 1);
            wrong.extend(owners.iter().filter(|(_, n)| **n > 1).map(|(user, n)| format!("{user} has {n} orders")));
            ensure!(ends.len() <= usize::try_from(sale.stock)?, "{} orders for {} units", ends.len(), sale.stock);
        }
        if !wrong.is_empty() {
            let number = wrong.len();
            wrong.truncate(SHOWN);
            bail!("{number} contradictions: {}", wrong.join("; "));
        }
        Ok(())
    }

    /// The order of every 202 exists, belongs to its buyer, and was not rejected.
    fn check_promises(&self, ends: &HashMap<Uuid, End>, wrong: &mut Vec<String>) {
        for (order, user) in self.promises() {
            match ends.get(&order) {
                None => wrong.push(format!("LOST: {user} was promised {order}, which does not exist")),
                Some(end) if end.user != user => wrong.push(format!("{order} of {user} belongs to {}", end.user)),
                Some(end) if end.status == "rejected" => wrong.push(format!("{order} of {user} ended rejected")),
                Some(end) if end.status == "accepted" => wrong.push(format!("{order} of {user} hangs")),
                Some(_) => {}
            }
        }
    }
}

/// No answer contradicts an answer that had arrived before the request was sent.
fn check_answers(calls: &[&Call], may_be_shut: bool, wrong: &mut Vec<String>) {
    let known = |call: &Call| match (call.status, call.code.as_str()) {
        (0, _) | (202, _) => true,
        (503, "temporarily-unavailable") | (409, "sold-out") => true,
        (409, "already-purchased") => call.keyless,
        (403, "not-started" | "ended") => may_be_shut,
        _ => false,
    };
    for call in calls {
        if !known(call) {
            wrong.push(format!("{} was answered {}", call.user, call.answer_text()));
        }
    }
    for (at, before) in calls.iter().enumerate().filter(|(_, call)| call.status == 202) {
        for after in calls[at + 1..].iter().filter(|after| after.sent > before.answered) {
            let fits = match (after.status, after.code.as_str()) {
                (0 | 503, _) => true,
                (202, _) if after.keyless => true, // another purchase, after the first has ended
                (202, _) => after.order == before.order && rank(&after.order_status) >= rank(&before.order_status),
                (409, "already-purchased") => after.order.is_some(),
                (409, "sold-out") => after.keyless, // its order has ended, and this is a new purchase
                _ => false,
            };
            if !fits {
                wrong.push(format!(
                    "{} was answered {} and then {}",
                    after.user,
                    before.answer_text(),
                    after.answer_text()
                ));
            }
        }
    }
}

/// An order must come from a request of its buyer. A buyer with a committed purchase must not get "sold out", 403 or 404.
fn check_owner(order: Uuid, end: &End, calls: &[&Call], lasting: bool, wrong: &mut Vec<String>) {
    let open = |call: &&&Call| matches!(call.status, 0 | 202 | 503) || call.order == Some(order);
    if !calls.iter().any(|call| open(&call)) {
        wrong.push(format!("{} has {order} and was answered otherwise", end.user));
    }
    for call in calls.iter().filter(|call| call.sent > end.purchased + SLACK && (lasting || !call.keyless)) {
        if matches!(call.status, 403 | 404) || call.code == "sold-out" {
            wrong.push(format!("{} holds {order} and was answered {}", end.user, call.answer_text()));
        }
    }
}

/// The place of a status in an order's life.
fn rank(status: &str) -> usize {
    ["accepted", "pending_payment", "paid", "refunding", "refunded", "cancelled", "rejected"]
        .iter()
        .position(|known| *known == status)
        .unwrap_or(usize::MAX)
}
