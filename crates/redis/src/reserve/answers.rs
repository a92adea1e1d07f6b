//! Calls reserve.lua for a batch of buyers. Winners and repeats are handed out to be committed, borrowers ask other shards, and all others
//! are answered at once.

use std::rc::Rc;
use std::time::{Duration, Instant};

use redis::Value;
use tokio::sync::SemaphorePermit;

use super::batcher::{Batch, Shared};
use super::call::{CallArguments, reserve_call};
use super::reply::{Loan, Memory, ReserveReply};
use crate::keys::SaleKeys;
use crate::loans::borrower::{Borrower, Home, QueueSlot};
use crate::servers::Connection;
use crate::thread_gate::Answered;
use crate::{Gate, GateError, is_no_script, scripts, timed};
use seckill_domain::admission::{Admission, Hold, ReserveRequest};
use seckill_domain::ids::Shard;
use seckill_domain::shards::SaleShards;

impl Shared {
    /// Makes a call, and returns how long it took.
    pub(super) async fn answer(
        self: &Rc<Self>,
        of: SaleShards,
        home: Shard,
        keys: &SaleKeys,
        batch: Batch,
        _call: SemaphorePermit<'_>,
    ) -> Duration {
        let Batch { requests, replies, now_ms } = batch;
        let (sale, place) = (of.sale, (of.sale, home));
        metrics::histogram!("seckill_gate_batch_size").record(requests.len() as f64);
        let asked_at = Instant::now();
        let known = self.sold_out.borrow().known(place);
        // Read before the call: the 0 of the home shard must be the last one.
        let is_one = of.count.is_one();
        let others = if is_one { None } else { self.lending.empty.borrow().others(of, home, Instant::now()) };
        let Gate { sold_out_ms, lapses, .. } = self.thread.gate;
        let limits = self.thread.gate.limits();
        let learn = self.wants_holders.get() && self.learning.borrow_mut().insert(place);
        let lenders = self.lending.first_lenders(of, &requests);
        let terms = CallArguments { known, learn, now_ms, sold_out_ms, lapses, limits, lenders };
        let reply = self.thread.gate.reserve(self.thread.connections.of(&keys.sale), keys, &terms, &requests).await;
        let took = asked_at.elapsed();
        if learn {
            self.learning.borrow_mut().remove(&place);
        }
        match reply {
            Ok(Some(mut reply)) => {
                let until = asked_at + Duration::from_millis(sold_out_ms);
                let sold_out_until = match others {
                    _ if is_one => Some(until),
                    Some(others) if others.epoch == reply.epoch => Some(until.min(others.until)),
                    _ => None,
                };
                self.sold_out.borrow_mut().record(place, known, &mut reply, asked_at, sold_out_until);
                let home = Home { of, shard: home, epoch: reply.epoch, now_ms };
                if !is_one {
                    let empty_until = (reply.memory == Memory::SoldOut).then_some(until);
                    self.lending.empty.borrow_mut().record(of, home.shard, home.epoch, empty_until);
                    // "Sold out" only if all shards are empty at one moment and one epoch. Otherwise the answer is 503.
                    if !others.is_some_and(|others| others.covers(reply.epoch, Instant::now())) {
                        let said = reply.admissions.iter_mut().filter(|admission| **admission == Admission::SoldOut);
                        said.for_each(|admission| *admission = Admission::UnderWay);
                    }
                }
                let asked = requests.into_iter().zip(replies).zip(reply.admissions);
                let asked = asked.map(|((request, caller), admission)| (request, caller, admission));
                let hold = Hold { epoch: home.epoch, shard: home.shard };
                if reply.loans.is_empty() {
                    self.thread.pass_on(of, hold, asked);
                } else {
                    self.thread.pass_on(of, hold, self.begin_loans(home, asked, &reply.loans, &terms.lenders));
                }
            }
            Ok(None) => {
                self.thread.gate.refill_wanted.add(sale);
                for reply in replies {
                    let _ = reply.send(Ok(Admission::NotServing));
                }
            }
            Err(error) => {
                tracing::warn!(%sale, %error, buyers = replies.len(), "reserve failed");
                for reply in replies {
                    let _ = reply.send(Err(GateError::Unknown));
                }
            }
        }
        took
    }

    /// Starts to borrow for the requests with an open loan. Returns the others.
    fn begin_loans(
        self: &Rc<Self>,
        home: Home,
        asked: impl Iterator<Item = Answered>,
        loans: &[(usize, Loan)],
        lenders: &[i16],
    ) -> Vec<Answered> {
        let (mut others, mut borrowers, mut repeats) = (Vec::new(), Vec::new(), Vec::new());
        let mut loans = loans.iter().peekable();
        for (place, (request, reply, admission)) in asked.enumerate() {
            match loans.next_if(|(of, _)| *of == place) {
                None => others.push((request, reply, admission)),
                Some((_, Loan::Written { number })) => {
                    let lender = Shard(lenders[place]);
                    borrowers.push(Borrower::new(
                        (request, reply),
                        home,
                        lender,
                        *number,
                        QueueSlot::new(&self.queued),
                    ));
                }
                Some((_, Loan::Found { lender })) => {
                    repeats.push(Borrower::new((request, reply), home, *lender, 0, QueueSlot::new(&self.queued)));
                }
            }
        }
        self.lending.borrow(borrowers);
        if !repeats.is_empty() {
            tokio::task::spawn_local(Rc::clone(&self.lending).look(repeats));
        }
        others
    }
}

impl Gate {
    /// `None`: this server does not serve the sale.
    async fn reserve(
        &self,
        mut connection: Connection,
        keys: &SaleKeys,
        terms: &CallArguments,
        requests: &[ReserveRequest],
    ) -> Result<Option<ReserveReply>, GateError> {
        let call = reserve_call(scripts::RESERVE.get_hash(), keys, terms, requests);
        let reply = match timed("reserve", call.query_async::<Vec<Value>>(&mut connection)).await {
            Err(error) if is_no_script(&error) => {
                scripts::RESERVE.load_async(&mut connection).await?;
                call.query_async(&mut connection).await?
            }
            reply => reply?,
        };
        ReserveReply::read(reply, requests.len())
    }
}
