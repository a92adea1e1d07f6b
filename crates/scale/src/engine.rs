//! The clock, the processors and the waiting lines of a simulated system: a discrete-event simulation, whose clock jumps from one
//! event to the next (Averill Law, "Simulation Modeling and Analysis", chapter 1, "next-event time advance").
//!
//! A host has some cores. A thread of a host does one piece of work at a time, in the order in which they came, each on one core and
//! without being interrupted. When more threads have work than there are cores, they take turns: a thread goes on until it has nothing
//! to do, or for a time slice. The slice matters on a machine that is shared: with shorter turns, fewer would wait for a call
//! or a commit at a time, and batches would be smaller than they are.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// A time, or a moment of the simulation: nanoseconds.
pub type Nanos = u64;

pub const SECOND: Nanos = 1_000_000_000;

/// How long a thread goes on while others wait for its core: Linux's base slice of 0.7 ms, times 1 + log2 of the processors
/// (kernel/sched/fair.c), for two. Half and twice as much change throughput by a few percent.
const SLICE: Nanos = 1_500_000;

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
    /// The thread whose work was finished last. It still has its core: its step may give it more to do.
    finished: Option<ThreadId>,
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
    /// Whether it waits for a core, or has one.
    is_awake: bool,
    /// How long it has had its core.
    used: Nanos,
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
            finished: None,
            busy: vec![0; parts],
        }
    }

    pub fn host(&mut self, cores: u32) -> HostId {
        self.hosts.push(Host { free_cores: cores.max(1), ready: VecDeque::new() });
        HostId(self.hosts.len() - 1)
    }

    /// Adds a thread, whose processor time counts for `part`.
    pub fn thread(&mut self, host: HostId, part: usize) -> ThreadId {
        self.threads.push(Thread { host, part, line: VecDeque::new(), running: None, is_awake: false, used: 0 });
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
        if !of.is_awake {
            of.is_awake = true;
            let host = of.host;
            self.hosts[host.0].ready.push_back(thread);
            self.give_cores(host);
        }
    }

    /// The next step; `None` when nothing is left to do.
    pub fn next_step(&mut self) -> Option<S> {
        if let Some(thread) = self.finished.take() {
            self.go_on(thread);
        }
        while let Some(due) = self.due.pop() {
            self.now = due.at;
            let thread = match due.what {
                What::Step(step) => return Some(step),
                What::Done(thread) => thread,
            };
            let of = &mut self.threads[thread.0];
            self.finished = Some(thread);
            if let Some((cost, step)) = of.running.take() {
                self.busy[of.part] += cost;
                return Some(step);
            }
        }
        None
    }

    fn schedule(&mut self, delay: Nanos, what: What<S>) {
        self.numbered += 1;
        self.due.push(Due { at: self.now + delay, number: self.numbered, what });
    }

    /// A thread that has finished a piece of work begins the next one, or leaves its core to another thread.
    fn go_on(&mut self, thread: ThreadId) {
        let of = &mut self.threads[thread.0];
        let host = of.host;
        let is_over = of.used >= SLICE && !self.hosts[host.0].ready.is_empty();
        if !of.line.is_empty() && !is_over {
            return self.begin(thread);
        }
        self.hosts[host.0].free_cores += 1;
        of.is_awake = !of.line.is_empty();
        if of.is_awake {
            self.hosts[host.0].ready.push_back(thread);
        }
        self.give_cores(host);
    }

    fn give_cores(&mut self, host: HostId) {
        while self.hosts[host.0].free_cores > 0
            && let Some(thread) = self.hosts[host.0].ready.pop_front()
        {
            self.hosts[host.0].free_cores -= 1;
            self.threads[thread.0].used = 0;
            self.begin(thread);
        }
    }

    /// A thread that has a core begins the first piece of work of its line.
    fn begin(&mut self, thread: ThreadId) {
        let of = &mut self.threads[thread.0];
        if let Some((cost, step)) = of.line.pop_front() {
            of.used += cost;
            of.running = Some((cost, step));
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

    /// Four threads of a host with two cores do the work of two, and none waits for longer than the slices of the others.
    #[test]
    fn threads_share_the_cores_of_their_host() {
        let mut engine = Engine::new(4);
        let host = engine.host(2);
        let threads: Vec<ThreadId> = (0..4).map(|part| engine.thread(host, part)).collect();
        let (piece, pieces) = (SLICE / 3, 30);
        for (name, thread) in threads.iter().enumerate() {
            (0..pieces).for_each(|_| engine.run(*thread, piece, name));
        }
        let mut done = [0; 4];
        while let Some(name) = engine.next_step() {
            done[name] += 1;
            let (least, most) = (done.iter().min().copied().unwrap_or(0), done.iter().max().copied().unwrap_or(0));
            assert!(most - least <= 6, "the threads do not take turns: {done:?}");
        }
        assert_eq!((done, engine.now()), ([pieces; 4], 4 * pieces * piece / 2));
        assert!((0..4).all(|part| engine.busy(part) == pieces * piece));
    }

    /// A thread whose step gives it more to do keeps its core, within its slice.
    #[test]
    fn a_thread_goes_on_with_what_its_own_step_gives_it() {
        let mut engine = Engine::new(1);
        let host = engine.host(1);
        let (first, second) = (engine.thread(host, 0), engine.thread(host, 0));
        engine.run(first, 10, "first");
        engine.run(second, 10, "second");
        assert_eq!(engine.next_step(), Some("first"));
        engine.run(first, 10, "first again");
        assert_eq!(engine.next_step(), Some("first again"));
        assert_eq!(engine.next_step(), Some("second"));
        assert_eq!((engine.next_step(), engine.now()), (None, 30));
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
