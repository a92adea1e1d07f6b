//! The waiting callers of this instance, by application. The more there are, the less often each asks Redis, so that any number of an
//! application's waiters costs Redis the same.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use seckill_domain::limiter::SlotKey;
use seckill_domain::policy::Name;
use seckill_redis::limiter::line::Pauses;

/// Each caller adds this to the longest pause of its application: 2,500 calls a second.
const A_CALLER: Duration = Duration::from_micros(400);
/// Each line adds this to the shortest pause: the first places of all lines make 1,000 calls a second.
const A_LINE: Duration = Duration::from_millis(1);
const SHORTEST_MIN: Duration = Duration::from_millis(5);
const LONGEST_MIN: Duration = Duration::from_millis(400);
/// A crashed waiter keeps its place for two and a half pauses.
const LONGEST_MAX: Duration = Duration::from_secs(4);

#[derive(Default)]
pub(super) struct Waits(Mutex<HashMap<Name, Callers>>);

#[derive(Default)]
struct Callers {
    count: u32,
    by_line: HashMap<SlotKey, u32>,
}

impl Waits {
    /// Counts a caller until the wait is dropped.
    pub(crate) fn begin(&self, app: &Name, line: &SlotKey) -> Wait<'_> {
        let mut apps = self.0.lock();
        let callers = apps.entry(app.clone()).or_default();
        callers.count += 1;
        *callers.by_line.entry(line.clone()).or_default() += 1;
        Wait { waits: self, app: app.clone(), line: line.clone() }
    }
}

pub(super) struct Wait<'a> {
    waits: &'a Waits,
    app: Name,
    line: SlotKey,
}

impl Wait<'_> {
    /// The pauses between this caller's calls, by the present number of waiters.
    pub(crate) fn pauses(&self) -> Pauses {
        let apps = self.waits.0.lock();
        let (callers, lines) = apps.get(&self.app).map_or((1, 1), |callers| (callers.count, callers.by_line.len()));
        let lines = u32::try_from(lines).unwrap_or(u32::MAX);
        let longest = A_CALLER.saturating_mul(callers).clamp(LONGEST_MIN, LONGEST_MAX);
        Pauses { shortest: A_LINE.saturating_mul(lines).clamp(SHORTEST_MIN, longest), longest }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut apps = self.waits.0.lock();
        let Some(callers) = apps.get_mut(&self.app) else { return };
        callers.count -= 1;
        if let Some(of_line) = callers.by_line.get_mut(&self.line) {
            *of_line -= 1;
            if *of_line == 0 {
                callers.by_line.remove(&self.line);
            }
        }
        if callers.count == 0 {
            apps.remove(&self.app);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_cost_the_same_however_many_there_are() {
        let waits = Waits::default();
        let [busy, calm] = ["busy", "calm"].map(|app| Name::parse(app, "app").unwrap());
        let line = |n: u32| SlotKey::new("busy", "policy", &n.to_string(), false);
        let many: Vec<Wait<'_>> = (0..3_000).map(|n| waits.begin(&busy, &line(n % 100))).collect();
        let one = waits.begin(&calm, &line(0));
        let ms = |shortest, longest| {
            let [shortest, longest] = [shortest, longest].map(Duration::from_millis);
            Pauses { shortest, longest }
        };
        assert_eq!(many[0].pauses(), ms(100, 1_200));
        assert_eq!(one.pauses(), ms(5, 400));
        let [first, ..] = &many[..] else { panic!("there are none") };
        let few = waits.begin(&busy, &line(0));
        assert_eq!(first.pauses(), few.pauses());
        drop(many);
        assert_eq!(few.pauses(), ms(5, 400));
        drop((few, one));
        assert!(waits.0.lock().is_empty());
    }
}
