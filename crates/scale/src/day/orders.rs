//! What becomes of the orders of a day.

use super::{Day, Tanks};
use crate::measured::Costs;

/// Fewer than that are none: fluids never quite run out.
const NONE: f64 = 0.01;

/// Orders, by what they wait for.
#[derive(Default)]
pub(super) struct Orders {
    pub won: f64,
    pub unsettled: f64,
    pub settled: f64,
    /// Whose buyers are about to pay; whose payments wait for the channel.
    deciding: f64,
    pub wish: f64,
    pub paid: f64,
    /// Of which nobody will pay, by the second in which they lapse; and those that are to be cancelled.
    lapsing: Vec<f64>,
    to_cancel: f64,
    pub lapsed: f64,
}

impl Orders {
    pub fn win(&mut self, won: f64) {
        self.won += won;
        self.unsettled += won;
    }

    pub fn are_done(&self) -> bool {
        let ended = self.paid + self.lapsed;
        self.won - ended < NONE.max(self.won * 1e-9)
    }

    /// What the workers do in a second, with what purchases leave them of PostgreSQL: settle, cancel what has lapsed, pay.
    pub fn go_on(&mut self, second: usize, day: &Day, tanks: &mut Tanks, costs: &Costs) {
        let due = self.lapsing.get_mut(second).map(std::mem::take).unwrap_or_default();
        self.to_cancel += due;
        let settled = through_workers(self.unsettled, tanks, costs);
        self.unsettled -= settled;
        self.settled += settled;
        let cancelled = through_workers(self.to_cancel, tanks, costs);
        self.to_cancel -= cancelled;
        self.lapsed += cancelled;

        self.deciding += settled * day.paid;
        let lapses_at = second + day.pay_within_s as usize;
        if self.lapsing.len() <= lapses_at {
            self.lapsing.resize(lapses_at + 1, 0.0);
        }
        self.lapsing[lapses_at] += settled * (1.0 - day.paid);
        // Each is as likely to pay in this second as in any other; the last few decide at once.
        let decides = 1.0 - (-1.0 / day.pay_after_s.max(0.001)).exp();
        let decided = if self.deciding < NONE { self.deciding } else { self.deciding * decides };
        self.deciding -= decided;
        self.wish += decided;

        let us = costs.paid;
        let room = tanks.postgres.room(us.postgres_us).min(tanks.serve.room(us.server_us));
        let room = room.min(tanks.work.room(us.work_us)).min(tanks.broker.room(us.broker_us));
        let paid = self.wish.min(f64::from(day.channel_rate)).min(room);
        self.wish -= paid;
        self.paid += paid;
        tanks.postgres.take(paid, us.postgres_us);
        tanks.serve.take(paid, us.server_us);
        tanks.work.take(paid, us.work_us);
        tanks.broker.take(paid, us.broker_us);
    }
}

/// How many of these orders pass the workers, the broker and PostgreSQL in this second.
fn through_workers(orders: f64, tanks: &mut Tanks, costs: &Costs) -> f64 {
    let us = costs.settled;
    let room = tanks.postgres.room(us.postgres_us).min(tanks.work.room(us.work_us));
    let done = orders.min(room).min(tanks.broker.room(us.broker_us));
    tanks.postgres.take(done, us.postgres_us);
    tanks.work.take(done, us.work_us);
    tanks.broker.take(done, us.broker_us);
    done
}
