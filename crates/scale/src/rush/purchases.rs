//! A purchase at its thread of `serve`, and at Redis.

use super::Request;
use super::outcome::Answer;
use super::step::{Buyer, Call, Step};
use super::system::System;
use crate::engine::nanos;
use crate::measured::CALL_MAX;

/// Winners that may wait for their commit in an instance; beyond that purchases are 503 before they touch the stock.
const BACKLOG_MAX: usize = 8192;

impl System<'_> {
    pub(super) fn came(&mut self, mut buyer: Buyer) {
        let costs = &self.rush.costs;
        let thread = &mut self.threads[buyer.thread as usize];
        let (cost, step) = match self.rush.request {
            Request::Hello => (costs.hello_us, Step::Greeted(buyer)),
            // What a 503 costs is not measured. It is given before the token is checked, and is as short as "sold out".
            Request::Purchase if thread.shedder.is_full() => (costs.memory_us, Step::Refused(buyer)),
            Request::Purchase => {
                thread.shedder.begin();
                buyer.is_counted = true;
                (costs.memory_us, Step::Parsed(buyer))
            }
        };
        self.engine.run(thread.id, nanos(cost), step);
    }

    /// Finds the next shard that may have units, and waits in its line; without one, it is sold out.
    pub(super) fn seek(&mut self, mut buyer: Buyer) {
        let now = self.engine.now();
        let (thread, shards) = (buyer.thread as usize, self.stock.len());
        let lines = &self.threads[thread].lines;
        while usize::from(buyer.passed) < shards && lines[buyer.shard(shards)].empty_until > now {
            buyer.passed += 1;
        }
        if usize::from(buyer.passed) >= shards {
            let answer = if buyer.was_asked { Answer::SoldOutByRedis } else { Answer::SoldOut };
            return self.answered(buyer, answer);
        }
        if self.instances[self.instance_of(thread)].waiting > BACKLOG_MAX {
            return self.answered(buyer, Answer::Unavailable);
        }
        let shard = buyer.shard(shards);
        (buyer.passed, buyer.was_asked) = (buyer.passed + 1, true);
        let line = &mut self.threads[thread].lines[shard];
        line.waiting.push_back(buyer);
        if !line.is_served {
            line.is_served = true;
            self.call(buyer.thread, shard);
        }
    }

    pub(super) fn instance_of(&self, thread: usize) -> usize {
        thread / self.rush.topology.serve_cores as usize
    }

    /// Calls Redis for those who wait.
    fn call(&mut self, thread: u32, shard: usize) {
        let line = &mut self.threads[thread as usize].lines[shard];
        let size = line.waiting.len().min(CALL_MAX as usize);
        let buyers = line.waiting.drain(..size).collect();
        self.seen.calls += 1;
        self.seen.called += size as u64;
        self.engine.after(self.hop, Step::Called(Call { thread, shard, buyers, winners: 0, is_empty: false }));
    }

    /// Redis has the call: it judges one after the other, so the units are taken in the order in which calls come.
    pub(super) fn called(&mut self, mut call: Call) {
        let buyers = call.buyers.len() as u64;
        let stock = &mut self.stock[call.shard];
        let won = buyers.min(*stock);
        *stock -= won;
        (call.winners, call.is_empty) = (won as usize, *stock == 0);
        if won > 0 && self.stock.iter().all(|units| *units == 0) {
            self.seen.sold_out_at = Some(self.engine.now());
        }
        let costs = &self.rush.costs;
        let us = costs.call_us + won as f64 * costs.reserved_us + (buyers - won) as f64 * costs.refused_us;
        let master = self.masters[call.shard % self.masters.len()];
        self.engine.run(master, nanos(us), Step::Judged(call));
    }

    /// The thread reads the reply. It has done the rest of its work for losers then, and half of it for winners.
    pub(super) fn replied(&mut self, call: Call) {
        let costs = &self.rush.costs;
        let (winners, losers) = (call.winners as f64, (call.buyers.len() - call.winners) as f64);
        let us = losers * (costs.asked_us - costs.memory_us) + winners * (costs.bought_us - costs.memory_us) / 2.0;
        let thread = self.threads[call.thread as usize].id;
        self.engine.run(thread, nanos(us), Step::PassedOn(call));
    }

    /// Losers are told, or ask another shard; winners wait for their commit; and the next call is made.
    pub(super) fn passed_on(&mut self, call: Call) {
        let Call { thread, shard, mut buyers, winners, is_empty } = call;
        if is_empty {
            let memory = nanos(self.rush.sale.memory_ms * 1000.0);
            self.threads[thread as usize].lines[shard].empty_until = self.engine.now() + memory;
        }
        let losers = buyers.split_off(winners);
        losers.into_iter().for_each(|buyer| self.seek(buyer));
        if !buyers.is_empty() {
            self.wait_for_commit(self.instance_of(thread as usize), buyers);
        }
        let line = &mut self.threads[thread as usize].lines[shard];
        if line.waiting.is_empty() {
            line.is_served = false;
        } else {
            self.call(thread, shard);
        }
    }
}
