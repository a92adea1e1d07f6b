//! Twenty processes against one Redis, by its own clock: never above the limit, and never starved below what is allowed.
//!
//! The test executable starts itself twenty times. Each process asks every limiter, at random, together more than twice
//! as often as they grant, and says what became of each ask. Their logs, merged by the server's time, are then judged:
//! by counting, and by an ideal limiter that is asked the same at the same times.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::RngExt;
use seckill::domain::limiter::{Algorithm, AlgorithmKind, State};
use uuid::Uuid;

use crate::test_limiter::{Bench, bucket, leases, slot, take, window};

const PROCESSES: usize = 20;
/// How often a process asks each limiter: on average every 20 ms, so all of them 1000 times a second.
const PAUSE: Duration = Duration::from_millis(20);

/// Each lets 320 permits a second through.
fn limiters() -> [Algorithm; 6] {
    [
        window(AlgorithmKind::FixedWindow, 160, 500),
        window(AlgorithmKind::SlidingLog, 160, 500),
        window(AlgorithmKind::SlidingCounter, 160, 500),
        bucket(AlgorithmKind::TokenBucket, 20, 320, 1000),
        bucket(AlgorithmKind::LeakyBucket, 20, 320, 1000),
        leases(64, 200), // nobody gives back: places are free by time alone
    ]
}

#[derive(Debug, Clone, Copy)]
struct Asked {
    at_us: i64,
    permits: i64,
    granted: bool,
}

#[tokio::test]
#[ignore = "one of the crowd, started by it"]
async fn caller() {
    let bench = Bench::under(&std::env::var("CROWD_PREFIX").expect("the crowd names it")).await;
    let seconds = std::env::var("CROWD_SECONDS").unwrap().parse().unwrap();
    let (slot, until) = (slot("crowd", ""), Instant::now() + Duration::from_secs(seconds));
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

/// What the processes say, for each limiter in the order of the server's time.
fn gather(prefix: &str, seconds: u64) -> Vec<Vec<Asked>> {
    let process = || {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["twenty_processes::caller", "--exact", "--ignored", "--nocapture"])
            .env("CROWD_PREFIX", prefix)
            .env("CROWD_SECONDS", seconds.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        thread::spawn(move || child.wait_with_output().unwrap())
    };
    let processes: Vec<_> = (0..PROCESSES).map(|_| process()).collect();
    let mut logs = vec![Vec::new(); limiters().len()];
    for process in processes {
        let output = process.join().unwrap();
        assert!(output.status.success(), "a caller failed");
        // The first line shares its own with what the test runner says.
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

/// The permits granted in `(t - window, t]`, before or at each ask.
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

/// Never above the limit in any window; and nobody refused, unless so many were granted within `held_us`.
fn full_and_fair(log: &[Asked], limit: i64, window_us: i64, held_us: i64) {
    let fullest = windows(log, window_us).into_iter().max();
    assert!(fullest <= Some(limit), "{fullest:?} of {limit}");
    for (asked, granted) in log.iter().zip(windows(log, held_us)) {
        assert!(asked.granted || granted + asked.permits > limit, "refused with {granted} of {limit}: {asked:?}");
    }
}

fn permits<'a>(log: impl IntoIterator<Item = &'a Asked>) -> i64 {
    log.into_iter().filter(|asked| asked.granted).map(|asked| asked.permits).sum()
}

/// The same asks, answered by a model.
fn answered_by(algorithm: Algorithm, log: &[Asked]) -> Vec<Asked> {
    let mut state = State::default();
    let answer = |asked: &Asked| {
        let verdict = algorithm.take(&mut state, asked.at_us, asked.permits, Uuid::new_v4()).unwrap();
        Asked { granted: verdict.granted, ..*asked }
    };
    log.iter().map(answer).collect()
}

/// The permits asked for and granted in each whole aligned window within the log.
fn aligned(log: &[Asked], window_us: i64) -> Vec<(i64, i64)> {
    let (first, last) = (log[0].at_us / window_us, log[log.len() - 1].at_us / window_us);
    let of = |window: i64| {
        let within = || log.iter().filter(move |asked| asked.at_us / window_us == window);
        (within().map(|asked| asked.permits).sum(), permits(within()))
    };
    (first + 1..last).map(of).collect()
}

/// What a bucket of 20 at 320 a second owes to these asks, reckoned by when it will be full: a machine that stalls
/// lets it run over, and that is lost to nobody's fault.
fn due_of_a_bucket(log: &[Asked]) -> i64 {
    let (mut full_at, mut due) = (0.0_f64, 0);
    for asked in log {
        let moment = (asked.at_us - log[0].at_us) as f64 * 320.0 / 1e6; // in permits
        let would_be_full_at = full_at.max(moment) + asked.permits as f64;
        if would_be_full_at - moment <= 20.0 {
            full_at = would_be_full_at;
            due += asked.permits;
        }
    }
    due
}

#[tokio::test]
async fn twenty_processes_are_granted_what_is_allowed_and_no_more() {
    let seconds = if std::env::var("SECKILL_TEST_LONG").is_ok_and(|long| long == "1") { 60 } else { 5 };
    let bench = Bench::new().await;
    let prefix = bench.prefix.clone();
    let logs = tokio::task::spawn_blocking(move || gather(&prefix, seconds)).await.unwrap();
    bench.clear().await;

    for (algorithm, log) in limiters().into_iter().zip(&logs) {
        let (name, lasted) = (algorithm.kind().as_str(), log[log.len() - 1].at_us - log[0].at_us);
        let (granted, asked): (i64, i64) = (permits(log), log.iter().map(|asked| asked.permits).sum());
        println!("{name}: {granted} of {asked} permits in {lasted} us");
        assert!(asked * 2 > granted * 3, "{name} was hardly asked more than it grants: {asked} for {granted}");

        // What Redis said is what the model says to the same asks, each of them.
        let model = answered_by(algorithm, log);
        let apart = log.iter().zip(&model).find(|(redis, model)| redis.granted != model.granted);
        assert!(apart.is_none(), "{name}: {apart:?}");

        // Counted by themselves: never above, and 99 % of what is allowed.
        match algorithm.kind() {
            AlgorithmKind::FixedWindow => {
                let windows = aligned(log, 500_000);
                // Who asks for two is refused the last one.
                let fair = |(asked, granted): &(i64, i64)| *granted <= 160 && *granted >= (*asked).min(160) - 1;
                assert!(windows.iter().all(fair), "{name}: {windows:?}");
            }
            AlgorithmKind::TokenBucket | AlgorithmKind::LeakyBucket => {
                let (flowed, due) = (lasted * 320 / 1_000_000, due_of_a_bucket(log));
                assert!(granted <= 20 + flowed && granted * 100 >= due * 99, "{name}: {granted} for {due}");
                let fullest = windows(log, 100_000).into_iter().max();
                assert!(fullest <= Some(20 + 32), "{name}: {fullest:?}");
            }
            AlgorithmKind::SlidingLog => full_and_fair(log, 160, 500_000, 500_000),
            AlgorithmKind::Concurrency => full_and_fair(log, 64, 200_000, 200_000),
            // A part of the window longer, at most: 125/126 of what is allowed, which is 99.2 %.
            AlgorithmKind::SlidingCounter => full_and_fair(log, 160, 500_000, 500_000 / 125 * 126),
        }
    }
}
