//! Who comes, and who has an answer.

use super::Crowd;
use super::outcome::Answer;
use super::step::{Buyer, Step};
use super::system::System;
use crate::engine::{Nanos, SECOND, nanos};

impl System<'_> {
    pub(super) fn arrive_later(&mut self) {
        let Crowd::Open { per_second, seconds } = self.rush.crowd else { return };
        let gap = if per_second > 0.0 { self.random.exponential(1e9 / per_second) } else { f64::INFINITY };
        if self.engine.now() as f64 + gap < seconds * SECOND as f64 {
            self.engine.after(gap as Nanos, Step::Arrive);
        } else {
            self.nobody_comes = true;
        }
    }

    pub(super) fn arrive(&mut self) {
        self.seen.arrivals += 1;
        self.under_way += 1;
        let thread = self.random.below(self.threads.len() as u32);
        let buyer = Buyer::new(self.engine.now(), thread, self.rush.topology.shards, &mut self.random);
        if self.balancers.is_empty() {
            self.engine.after(self.hop, Step::Came(buyer));
        } else {
            let balancer = self.balancers[self.next_balancer];
            self.next_balancer = (self.next_balancer + 1) % self.balancers.len();
            let cost = nanos(self.rush.costs.balancer_us + self.rush.assumed.handshake_us);
            self.engine.run(balancer, cost, Step::Balanced(buyer));
        }
        self.arrive_later();
    }

    /// Each connection of the load generator sends its first request. It stays with one thread of the service.
    pub(super) fn begin_to_send(&mut self, connections: u32, client_us: f64) {
        let Some(client) = self.client else { return };
        self.under_way += u64::from(connections);
        for connection in 0..connections {
            let thread = connection % self.threads.len() as u32;
            let buyer = Buyer::new(0, thread, self.rush.topology.shards, &mut self.random);
            self.engine.run(client, nanos(client_us), Step::Sent(buyer));
        }
    }

    pub(super) fn sent(&mut self, mut buyer: Buyer) {
        buyer.begun = self.engine.now();
        self.seen.arrivals += 1;
        self.engine.after(self.hop, Step::Came(buyer));
    }

    /// The service has answered. A load generator has the answer when its thread has read it; in the same work it writes the next
    /// request.
    pub(super) fn answered(&mut self, buyer: Buyer, answer: Answer) {
        if buyer.is_counted {
            self.threads[buyer.thread as usize].shedder.end();
        }
        match (self.client, self.rush.crowd) {
            (Some(client), Crowd::Closed { client_us, .. }) => {
                self.engine.run(client, nanos(client_us), Step::Read(buyer, answer));
            }
            _ => self.told(buyer, answer),
        }
    }

    /// A buyer has the answer, once it has come back to the machine that the request came from.
    pub(super) fn told(&mut self, buyer: Buyer, answer: Answer) {
        self.under_way -= 1;
        let wait = self.engine.now() + self.hop - buyer.begun;
        self.seen.answer(answer, wait, &self.engine);
        if let Crowd::Closed { seconds, .. } = self.rush.crowd {
            if (self.engine.now() as f64) < seconds * SECOND as f64 {
                self.under_way += 1;
                let next = Buyer::new(0, buyer.thread, self.rush.topology.shards, &mut self.random);
                self.sent(next);
            } else {
                self.nobody_comes = true;
            }
        }
        self.check_whether_all_are_answered();
    }
}
