//! The processes of a rush and their threads, and who takes which `step`. Who comes is in `crowd`, what a purchase does in `purchases`,
//! what becomes of a winner in `commits`, and the work after that, with its `backlog`, in `settling`.

use std::collections::VecDeque;

use super::backlog::Settling;
use super::outcome::{Answer, LOOK, Outcome, Part, Seen};
use super::shedder::Shedder;
use super::shedding::TICK;
use super::step::{Buyer, Flushing, Step};
use super::{Crowd, Rush};
use crate::engine::{Engine, HostId, Nanos, ThreadId, nanos};
use crate::random::Random;

/// `purchase.committers`: commits of an instance under way at the same time.
const COMMITTERS: usize = 2;

/// An instance of `serve`: what its threads share.
pub(super) struct Instance {
    /// Winners of calls, that wait for their commit; and how many they are.
    pub groups: VecDeque<Vec<Buyer>>,
    pub waiting: usize,
    /// PostgreSQL's processes for its commits, and those that are idle.
    pub backends: Vec<ThreadId>,
    pub idle: Vec<usize>,
}

/// The buyers of a thread who wait for its next call to a shard.
#[derive(Debug, Clone, Default)]
pub(super) struct Line {
    pub waiting: VecDeque<Buyer>,
    /// Whether a call is under way.
    pub is_served: bool,
    /// Until when the thread remembers that the shard is empty.
    pub empty_until: Nanos,
}

pub(super) struct ServeThread {
    pub id: ThreadId,
    /// By shard.
    pub lines: Vec<Line>,
    pub shedder: Shedder,
}

/// PostgreSQL flushes its log once for all who wait. Who comes meanwhile waits for the next flush.
#[derive(Default)]
pub(super) struct Flush {
    pub waiting: Vec<Flushing>,
    pub under_way: Vec<Flushing>,
    pub is_busy: bool,
}

pub(super) struct System<'a> {
    pub rush: &'a Rush,
    pub engine: Engine<Step>,
    pub random: Random,
    pub client: Option<ThreadId>,
    pub balancers: Vec<ThreadId>,
    pub next_balancer: usize,
    pub threads: Vec<ServeThread>,
    pub instances: Vec<Instance>,
    pub masters: Vec<ThreadId>,
    /// Units left, by shard.
    pub stock: Vec<u64>,
    pub flush: Flush,
    pub settling: Settling,
    pub seen: Seen,
    /// One way between two machines.
    pub hop: Nanos,
    /// Requests without an answer.
    pub under_way: u64,
    pub nobody_comes: bool,
    cores: [u32; 7],
}

/// Makes hosts and threads: each process has a machine of its own, or all share one.
struct Machines<'a> {
    engine: &'a mut Engine<Step>,
    shared: Option<HostId>,
}

impl Machines<'_> {
    /// A process with so many threads, on a machine with so many processors.
    fn process(&mut self, part: Part, threads: usize, cores: u32) -> Vec<ThreadId> {
        let host = self.shared.unwrap_or_else(|| self.engine.host(cores));
        (0..threads).map(|_| self.engine.thread(host, part as usize)).collect()
    }

    fn processes(&mut self, part: Part, count: u32, cores: u32) -> Vec<ThreadId> {
        (0..count).flat_map(|_| self.process(part, cores as usize, cores)).collect()
    }
}

impl<'a> System<'a> {
    pub fn new(rush: &'a Rush) -> Self {
        let mut engine = Engine::new(Part::ALL.len());
        let shared = rush.one_machine_cores.map(|cores| engine.host(cores));
        let of = &rush.topology;
        let mut machines = Machines { engine: &mut engine, shared };
        let client = match rush.crowd {
            Crowd::Closed { .. } => machines.process(Part::Client, 1, 1).pop(),
            Crowd::Open { .. } => None,
        };
        let balancers = machines.processes(Part::Balancer, of.balancers, of.balancer_cores);
        let serving = machines.processes(Part::Serve, of.serve, of.serve_cores);
        let masters = machines.processes(Part::Redis, of.redis, 1);
        let settling = Settling::new(
            rush.sale.unsettled,
            (0..of.work).flat_map(|_| machines.process(Part::Work, Settling::LOOPS, of.work_cores)).collect(),
            machines.process(Part::Broker, of.broker_cores as usize, of.broker_cores),
        );
        let lanes = of.serve as usize * COMMITTERS;
        let mut backends = machines.process(Part::Postgres, lanes + settling.loops(), of.postgres_cores);
        let settling = settling.with_backends(backends.split_off(lanes));
        let instances = backends.chunks(COMMITTERS).map(|backends| Instance {
            groups: VecDeque::new(),
            waiting: 0,
            backends: backends.to_vec(),
            idle: (0..COMMITTERS).collect(),
        });
        let shards = of.shards as usize;
        let thread = |id| ServeThread { id, lines: vec![Line::default(); shards], shedder: Shedder::default() };
        let cores = Part::ALL.map(|part| match (part, rush.one_machine_cores) {
            (Part::Client, _) => u32::from(client.is_some()),
            (part, None) => of.cores(part),
            (Part::Postgres, Some(machine)) => machine,
            (part, Some(machine)) => of.cores(part).min(machine),
        });
        Self {
            rush,
            random: Random::new(rush.seed),
            client,
            balancers,
            next_balancer: 0,
            threads: serving.into_iter().map(thread).collect(),
            instances: instances.collect(),
            masters,
            stock: parts(rush.sale.units, shards),
            flush: Flush::default(),
            settling,
            seen: Seen::default(),
            hop: nanos(rush.assumed.network_us / 2.0),
            under_way: 0,
            nobody_comes: false,
            cores,
            engine,
        }
    }

    /// Plays until all are answered, and all that was sold is settled.
    pub fn play(mut self) -> Outcome {
        match self.rush.crowd {
            Crowd::Open { .. } => self.arrive_later(),
            Crowd::Closed { connections, client_us, .. } => self.begin_to_send(connections, client_us),
        }
        self.engine.after(nanos(TICK.as_secs_f64() * 1e6), Step::Tick);
        self.engine.after(LOOK, Step::Look);
        self.check_whether_all_are_answered();
        while let Some(step) = self.engine.next_step() {
            self.take(step);
        }
        self.settling.add_to(self.seen.outcome(&self.cores))
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Arrive => self.arrive(),
            Step::Sent(buyer) => self.sent(buyer),
            Step::Read(buyer, answer) => self.told(buyer, answer),
            Step::Balanced(buyer) => self.engine.after(self.hop, Step::Came(buyer)),
            Step::Came(buyer) => self.came(buyer),
            Step::Parsed(buyer) => self.seek(buyer),
            Step::Refused(buyer) => self.answered(buyer, Answer::Unavailable),
            Step::Greeted(buyer) => self.answered(buyer, Answer::Hello),
            Step::Called(call) => self.called(call),
            Step::Judged(call) => self.engine.after(self.hop, Step::Replied(call)),
            Step::Replied(call) => self.replied(call),
            Step::PassedOn(call) => self.passed_on(call),
            Step::Inserting(commit) => self.inserting(commit),
            Step::Inserted(commit) => self.flush(Flushing::Commit(commit)),
            Step::Flushed => self.flushed(),
            Step::Durable(Flushing::Commit(commit)) => self.engine.after(self.hop, Step::Committed(commit)),
            Step::Durable(Flushing::Settled(batch)) => self.settled(batch),
            Step::Committed(commit) => self.committed(commit),
            Step::Won(buyers) => buyers.into_iter().for_each(|buyer| self.answered(buyer, Answer::Accepted)),
            Step::Settle => self.settle_from_now_on(),
            Step::Worked(batch) => self.worked(batch),
            Step::Carried(batch) => self.carried(batch),
            Step::Written(batch) => self.written(batch),
            Step::Tick => self.tick(),
            Step::Look => self.look(),
        }
    }

    /// Whether nobody comes any more, and all are answered.
    pub fn is_over(&self) -> bool {
        self.nobody_comes && self.under_way == 0
    }

    pub fn check_whether_all_are_answered(&mut self) {
        if self.is_over() {
            self.seen.look(&self.engine, &self.cores);
            self.seen.end(&self.engine);
            self.settle_from_now_on();
        }
    }

    fn tick(&mut self) {
        self.threads.iter_mut().for_each(|thread| thread.shedder.tick());
        if !self.is_over() {
            self.engine.after(nanos(TICK.as_secs_f64() * 1e6), Step::Tick);
        }
    }

    /// Nobody looks after the rush, when the workers have the machines to themselves.
    fn look(&mut self) {
        if !self.is_over() {
            self.seen.look(&self.engine, &self.cores);
            self.engine.after(LOOK, Step::Look);
        }
    }
}

/// The stock of each shard: equal parts, the first of which are larger by one if it does not come out even.
fn parts(units: u64, shards: usize) -> Vec<u64> {
    let shards = shards as u64;
    (0..shards).map(|shard| units / shards + u64::from(shard < units % shards)).collect()
}
