//! Twenty processes against one Redis, by its own clock: never above the limit, and never below it.
//!
//! The test executable starts itself twenty times. Each process asks every limiter at random times, together far more often than the limiters
//! grant, and prints each answer. The logs, merged by the server's time, are checked against the model.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::RngExt;
use seckill_domain::limiter::{Algorithm, AlgorithmKind, ParameterSet, State};
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

fn permits(log: &[Asked]) -> i64 {
    log.iter().filter(|asked| asked.granted).map(|asked| asked.permits).sum()
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

/// Redis answered each ask as the model does, whose promises are tested in `model_promises`.
fn check(logs: &[Vec<Asked>]) {
    for (algorithm, log) in limiters().into_iter().zip(logs) {
        let mut state = State::default();
        for asked in log {
            let verdict = algorithm.take(&mut state, asked.at_us, asked.permits, Uuid::new_v4()).unwrap();
            assert_eq!(asked.granted, verdict.granted, "{:?}: {asked:?}", algorithm.kind());
        }
    }
}
