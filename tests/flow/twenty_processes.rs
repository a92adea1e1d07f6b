//! Twenty processes against one Redis, by its own clock: never above the limit, and never below it.
//!
//! The test executable starts itself twenty times. Each process asks every limiter at random times, together far more often than the limiters
//! grant, and prints each answer. The logs, merged by the server's time, are checked by counting, and against a model.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::RngExt;
use seckill::domain::limiter::{Algorithm, AlgorithmKind, ParameterSet, State};
use uuid::Uuid;

use crate::test_limiter::{Bench, bucket, leases, slot, take, window};

const PROCESSES: usize = 20;
/// The average pause of a process at each limiter: all together ask it 1000 times a second.
const PAUSE: Duration = Duration::from_millis(20);

/// The permits of each limiter in a second. The processes ask for 1500, or on a busy machine for 10 % of that, which is still more.
const RATE: i64 = 80;
const CAPACITY: i64 = 5;
const WINDOW_MS: i64 = 500;
const WINDOW_LIMIT: i64 = RATE / 2;
const LEASE_MS: i64 = 200;
const LEASES: i64 = RATE / 5;

/// One limiter of each kind.
fn limiters() -> Vec<Algorithm> {
    let limiter = |kind: AlgorithmKind| match kind.parameter_set() {
        ParameterSet::Window => window(kind, WINDOW_LIMIT, WINDOW_MS),
        ParameterSet::Bucket => bucket(kind, CAPACITY, RATE, 1000),
        ParameterSet::Leases => leases(LEASES, LEASE_MS), // never given back: they end by themselves
    };
    AlgorithmKind::ALL.iter().map(|kind| limiter(*kind)).collect()
}

#[derive(Debug, Clone, Copy)]
struct Asked {
    at_us: i64,
    permits: i64,
    granted: bool,
}

#[tokio::test]
#[ignore = "one of the twenty processes, started by the test below"]
async fn one_process() {
    let bench = Bench::under(&std::env::var("PROCESS_PREFIX").expect("the test below sets it")).await;
    let seconds = std::env::var("PROCESS_SECONDS").unwrap().parse().unwrap();
    let (slot, until) = (slot("processes", ""), Instant::now() + Duration::from_secs(seconds));
    let ask = async |index: usize, algorithm: Algorithm| {
        while Instant::now() < until {
            let permits = rand::rng().random_range(1..=2);
            let answer = bench.limiter.acquire(&[take(&slot, &algorithm, permits)]).await.unwrap();
            let at_us = answer.verdicts[0].unwrap().at_us;
            println!("@ {index} {at_us} {permits} {}", u8::from(answer.granted));
            tokio::time::sleep(PAUSE.mul_f64(rand::rng().random_range(0.0..2.0))).await;
        }
    };
    join_all(limiters().into_iter().enumerate().map(|(index, algorithm)| ask(index, algorithm))).await;
}

/// Runs the processes. Returns each limiter's log, in the order of the server's time.
fn run_processes(prefix: &str, seconds: u64) -> Vec<Vec<Asked>> {
    let process = || {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["twenty_processes::one_process", "--exact", "--ignored", "--nocapture"])
            .env("PROCESS_PREFIX", prefix)
            .env("PROCESS_SECONDS", seconds.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        thread::spawn(move || child.wait_with_output().unwrap())
    };
    let processes: Vec<_> = (0..PROCESSES).map(|_| process()).collect();
    let mut logs = vec![Vec::new(); limiters().len()];
    for process in processes {
        let output = process.join().unwrap();
        assert!(output.status.success(), "a process failed");
        // The test runner may print at the beginning of a line.
        for line in String::from_utf8(output.stdout).unwrap().lines().filter_map(|line| line.split_once("@ ")) {
            let numbers: Vec<i64> = line.1.split(' ').map(|number| number.parse().unwrap()).collect();
            let [index, at_us, permits, granted] = numbers[..] else { panic!("{line:?}") };
            logs[usize::try_from(index).unwrap()].push(Asked { at_us, permits, granted: granted == 1 });
        }
    }
    for log in &mut logs {
        log.sort_by_key(|asked| asked.at_us);
    }
    logs
}

/// For each ask, the permits granted in `(t - window, t]`, up to that ask.
fn windows(log: &[Asked], window_us: i64) -> Vec<i64> {
    let (mut begin, mut within) = (0, 0);
    let mut until = |asked: &Asked| {
        within += permits([asked]);
        while log[begin].at_us <= asked.at_us - window_us {
            within -= permits([&log[begin]]);
            begin += 1;
        }
        within
    };
    log.iter().map(&mut until).collect()
}

/// No window is above the limit, and each refusal had enough grants within `held_us` before it.
fn check_windows(log: &[Asked], limit: i64, window_us: i64, held_us: i64) {
    let fullest = windows(log, window_us).into_iter().max();
    assert!(fullest <= Some(limit), "{fullest:?} of {limit}");
    for (asked, granted) in log.iter().zip(windows(log, held_us)) {
        assert!(asked.granted || granted + asked.permits > limit, "refused with {granted} of {limit}: {asked:?}");
    }
}

fn permits<'a>(log: impl IntoIterator<Item = &'a Asked>) -> i64 {
    log.into_iter().filter(|asked| asked.granted).map(|asked| asked.permits).sum()
}

/// For each whole aligned window of the log, the permits asked for and granted.
fn aligned(log: &[Asked], window_us: i64) -> Vec<(i64, i64)> {
    let (first, last) = (log[0].at_us / window_us, log[log.len() - 1].at_us / window_us);
    let of = |window: i64| {
        let within = || log.iter().filter(move |asked| asked.at_us / window_us == window);
        (within().map(|asked| asked.permits).sum(), permits(within()))
    };
    (first + 1..last).map(of).collect()
}

/// The permits that a bucket owes to these asks, by the time at which it is full. A stalled machine lets the bucket run over, and that part
/// is not owed.
fn due_of_a_bucket(log: &[Asked]) -> i64 {
    let (mut full_at, mut due) = (0.0_f64, 0);
    for asked in log {
        let moment = (asked.at_us - log[0].at_us) as f64 * RATE as f64 / 1e6; // in permits
        let would_be_full_at = full_at.max(moment) + asked.permits as f64;
        if would_be_full_at - moment <= CAPACITY as f64 {
            full_at = would_be_full_at;
            due += asked.permits;
        }
    }
    due
}

#[tokio::test]
async fn twenty_processes_are_granted_what_is_allowed_and_no_more() {
    let seconds = if std::env::var("SECKILL_TEST_LONG").is_ok_and(|long| long == "1") { 60 } else { 3 };
    // On a busy machine the processes may ask too seldom: then they try again.
    for tries in (0..3).rev() {
        let bench = Bench::new().await;
        let prefix = bench.prefix.clone();
        let logs = tokio::task::spawn_blocking(move || run_processes(&prefix, seconds)).await.unwrap();
        bench.clear().await;
        check(&logs);
        let all = |log: &Vec<Asked>| log.iter().map(|asked| asked.permits).sum::<i64>();
        let counts: Vec<(i64, i64)> = logs.iter().map(|log| (all(log), permits(log))).collect();
        if counts.iter().all(|(asked, granted)| asked * 2 > granted * 3) {
            return;
        }
        assert!(tries > 0, "the processes asked for too few permits; asked and granted are {counts:?}");
    }
}

/// Checks the grants, for any number of asks.
fn check(logs: &[Vec<Asked>]) {
    let window_us = WINDOW_MS * 1000;
    for (algorithm, log) in limiters().into_iter().zip(logs) {
        let (name, lasted) = (algorithm.kind().as_str(), log[log.len() - 1].at_us - log[0].at_us);
        let (granted, asked): (i64, i64) = (permits(log), log.iter().map(|asked| asked.permits).sum());
        println!("{name}: {granted} of {asked} permits in {lasted} us");
        // Redis answered each ask as the model does.
        let mut state = State::default();
        for asked in log {
            let verdict = algorithm.take(&mut state, asked.at_us, asked.permits, Uuid::new_v4()).unwrap();
            assert_eq!(asked.granted, verdict.granted, "{name}: {asked:?}");
        }

        // Counted without the model: never above the limit, and at least 99 % of it.
        match algorithm.kind() {
            AlgorithmKind::FixedWindow => {
                let windows = aligned(log, WINDOW_MS * 1000);
                // A process that asks for two permits is refused when one is left.
                let fair =
                    |(asked, granted): &(i64, i64)| ((*asked).min(WINDOW_LIMIT) - 1..=WINDOW_LIMIT).contains(granted);
                assert!(windows.iter().all(fair), "{name}: {windows:?}");
            }
            AlgorithmKind::TokenBucket | AlgorithmKind::LeakyBucket => {
                let (flowed, due) = (lasted * RATE / 1_000_000, due_of_a_bucket(log));
                assert!(granted <= CAPACITY + flowed && granted * 100 >= due * 99, "{name}: {granted} for {due}");
                let fullest = windows(log, 100_000).into_iter().max();
                assert!(fullest <= Some(CAPACITY + RATE / 10), "{name}: {fullest:?}");
            }
            AlgorithmKind::SlidingLog => check_windows(log, WINDOW_LIMIT, window_us, window_us),
            AlgorithmKind::Concurrency => check_windows(log, LEASES, LEASE_MS * 1000, LEASE_MS * 1000),
            // A permit counts for up to one sub-window longer: 125/126 of the limit, which is 99.2 %.
            AlgorithmKind::SlidingCounter => check_windows(log, WINDOW_LIMIT, window_us, window_us / 125 * 126),
        }
    }
}
