//! The clock, the processors and the waiting lines of a simulated system: a discrete-event simulation, whose clock jumps from one
//! event to the next (Averill Law, "Simulation Modeling and Analysis", chapter 1, "next-event time advance").
//!
//! A host has some cores. A thread of a host does one piece of work at a time, in the order in which they came, each on one core and
//! without being interrupted. When more threads have work than there are cores, they take turns, a piece each.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// A time, or a moment of the simulation: nanoseconds.
pub type Nanos = u64;

pub const SECOND: Nanos = 1_000_000_000;

/// From microseconds.
pub fn nanos(us: f64) -> Nanos {
    (us.max(0.0) * 1000.0).round() as Nanos
}

pub fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / SECOND as f64
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostId(usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadId(usize);

/// Runs steps `S` in the order of their times; those of one moment in the order in which they were asked for.
pub struct Engine<S> {
    now: Nanos,
    numbered: u64,
    due: BinaryHeap<Due<S>>,
    hosts: Vec<Host>,
    threads: Vec<Thread<S>>,
    /// Processor time of the work that was finished, by part.
    busy: Vec<Nanos>,
}

struct Due<S> {
    at: Nanos,
    number: u64,
    what: What<S>,
}

enum What<S> {
    Step(S),
    Done(ThreadId),
}

struct Host {
    free_cores: u32,
    /// Threads that have work and wait for a core.
    ready: VecDeque<ThreadId>,
}

struct Thread<S> {
    host: HostId,
    part: usize,
    line: VecDeque<(Nanos, S)>,
    running: Option<(Nanos, S)>,
    is_ready: bool,
}

impl<S> Engine<S> {
    /// An engine whose threads belong to so many parts.
    pub fn new(parts: usize) -> Self {
        Self {
            now: 0,
            numbered: 0,
            due: BinaryHeap::new(),
            hosts: Vec::new(),
            threads: Vec::new(),
            busy: vec![0; parts],
        }
    }

    pub fn host(&mut self, cores: u32) -> HostId {
        self.hosts.push(Host { free_cores: cores.max(1), ready: VecDeque::new() });
        HostId(self.hosts.len() - 1)
    }

    /// Adds a thread, whose processor time counts for `part`.
    pub fn thread(&mut self, host: HostId, part: usize) -> ThreadId {
        let (line, running, is_ready) = (VecDeque::new(), None, false);
        self.threads.push(Thread { host, part, line, running, is_ready });
        ThreadId(self.threads.len() - 1)
    }

    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Processor time that the threads of a part have used.
    pub fn busy(&self, part: usize) -> Nanos {
        self.busy[part]
    }

    /// Takes this step after this time.
    pub fn after(&mut self, delay: Nanos, step: S) {
        self.schedule(delay, What::Step(step));
    }

    /// Gives a thread work that takes so much processor time, and takes the step when it is done.
    pub fn run(&mut self, thread: ThreadId, cost: Nanos, step: S) {
        let of = &mut self.threads[thread.0];
        of.line.push_back((cost, step));
        if of.running.is_none() && !of.is_ready {
            of.is_ready = true;
            let host = of.host;
            self.hosts[host.0].ready.push_back(thread);
            self.start_ready(host);
        }
    }

    /// The next step; `None` when nothing is left to do.
    pub fn next_step(&mut self) -> Option<S> {
        while let Some(due) = self.due.pop() {
            self.now = due.at;
            match due.what {
                What::Step(step) => return Some(step),
                What::Done(thread) => {
                    if let Some(step) = self.finish(thread) {
                        return Some(step);
                    }
                }
            }
        }
        None
    }

    fn schedule(&mut self, delay: Nanos, what: What<S>) {
        self.numbered += 1;
        self.due.push(Due { at: self.now + delay, number: self.numbered, what });
    }

    fn finish(&mut self, thread: ThreadId) -> Option<S> {
        let of = &mut self.threads[thread.0];
        let (cost, step) = of.running.take()?;
        self.busy[of.part] += cost;
        let host = of.host;
        self.hosts[host.0].free_cores += 1;
        if !of.line.is_empty() {
            of.is_ready = true;
            self.hosts[host.0].ready.push_back(thread);
        }
        self.start_ready(host);
        Some(step)
    }

    fn start_ready(&mut self, host: HostId) {
        while self.hosts[host.0].free_cores > 0
            && let Some(thread) = self.hosts[host.0].ready.pop_front()
        {
            let of = &mut self.threads[thread.0];
            of.is_ready = false;
            let Some((cost, step)) = of.line.pop_front() else { continue };
            of.running = Some((cost, step));
            self.hosts[host.0].free_cores -= 1;
            self.schedule(cost, What::Done(thread));
        }
    }
}

// The heap gives the greatest first: the earliest is the greatest.
impl<S> Ord for Due<S> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<S> PartialOrd for Due<S> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<S> PartialEq for Due<S> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<S> Eq for Due<S> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    enum Step {
        Arrive,
        Served(Nanos),
    }

    /// The mean time in the line, not counting the service, of arrivals that are independent, at one thread of one core.
    fn mean_wait(load: f64, service: Nanos, arrivals: u32) -> f64 {
        let (mut engine, mut random) = (Engine::new(1), Random::new(11));
        let host = engine.host(1);
        let thread = engine.thread(host, 0);
        engine.after(0, Step::Arrive);
        let (mut left, mut waited) = (arrivals, 0.0);
        while let Some(step) = engine.next_step() {
            match step {
                Step::Arrive => {
                    engine.run(thread, service, Step::Served(engine.now()));
                    left -= 1;
                    if left > 0 {
                        engine.after(random.exponential(service as f64 / load) as Nanos, Step::Arrive);
                    }
                }
                Step::Served(begun) => waited += (engine.now() - begun - service) as f64,
            }
        }
        assert_eq!(engine.busy(0), service * u64::from(arrivals), "work was lost, or done twice");
        waited / f64::from(arrivals)
    }

    /// The line of an M/D/1 queue is as long as the formula of Pollaczek and Khinchine says: load / (1 - load) / 2 services.
    #[test]
    fn waits_are_those_of_the_formula() {
        for load in [0.3, 0.6, 0.8] {
            let service = 10_000;
            let (seen, due) = (mean_wait(load, service, 400_000), load / (1.0 - load) / 2.0 * service as f64);
            assert!((seen / due - 1.0).abs() < 0.05, "load {load}: waited {seen} ns, by the formula {due} ns");
        }
    }

    /// Four threads of a host with two cores do the work of two.
    #[test]
    fn threads_share_the_cores_of_their_host() {
        let mut engine = Engine::new(4);
        let host = engine.host(2);
        let threads: Vec<ThreadId> = (0..4).map(|part| engine.thread(host, part)).collect();
        for _ in 0..10 {
            threads.iter().for_each(|thread| engine.run(*thread, 100, ()));
        }
        let mut done = 0;
        while engine.next_step().is_some() {
            done += 1;
        }
        assert_eq!((done, engine.now()), (40, 4 * 10 * 100 / 2));
        assert!((0..4).all(|part| engine.busy(part) == 1000), "the threads did not take turns");
    }

    /// Steps come by their time, and those of one moment in the order in which they were asked for.
    #[test]
    fn steps_come_in_their_order() {
        let mut engine = Engine::new(1);
        for (delay, name) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            engine.after(delay, name);
        }
        let order: String = std::iter::from_fn(|| engine.next_step()).collect();
        assert_eq!(order, "abcd");
    }
}
