//! What a caller sees of the limiters in Redis: all or nothing, refusals without a trace, returns, leases, repairs.

use std::time::{Duration, Instant};

use seckill::domain::limiter::{AlgorithmKind, SlotKey};
use seckill::gate::GateError;
use seckill::gate::limiter::Take;
use uuid::Uuid;

use crate::test_limiter::{Bench, DAWN, bucket, leases, limiter, one_of_each, slot, take, window};

#[tokio::test]
async fn a_refusal_leaves_every_byte_as_it_was() {
    let bench = Bench::new().await;
    for algorithm in one_of_each() {
        let slot = slot("p", "k");
        assert!(bench.limiter.acquire(&[take(&slot, &algorithm, 3)]).await.unwrap().granted);
        let before = bench.dump().await;
        assert!(!bench.limiter.acquire(&[take(&slot, &algorithm, 2)]).await.unwrap().granted, "{algorithm:?}");
        for permits in [0, 5, u32::MAX] {
            let refused = bench.limiter.acquire(&[take(&slot, &algorithm, permits)]).await;
            assert!(matches!(refused, Err(GateError::Impossible)), "{permits} of {algorithm:?}");
        }
        assert_eq!(bench.dump().await, before, "{algorithm:?}");
        assert!(bench.limiter.acquire(&[take(&slot, &algorithm, 1)]).await.unwrap().granted, "{algorithm:?}");
    }
    bench.clear().await;
}

#[tokio::test]
async fn the_script_itself_takes_no_permits_but_whole_ones() {
    let bench = Bench::new().await;
    let script = redis::Script::new(concat!(
        include_str!("../../lua/limit_begin.lua"),
        include_str!("../../lua/limit_fixed_window.lua"),
        include_str!("../../lua/acquire_permits.lua"),
    ));
    for permits in ["0", "-1", "1.5", "1e1", "0x1", "nan", "inf", "", " 1", "99999999999999999999", "6"] {
        let mut call = script.key(format!("{}k", bench.prefix));
        call.arg("").arg("fixed-window").arg(permits).arg(5).arg(60_000_000).arg(0).arg("");
        let reply: Vec<i64> = call.invoke_async(&mut bench.redis.clone()).await.unwrap();
        assert_eq!(reply, [-2], "{permits:?}");
    }
    assert_eq!(bench.keys().await, [""; 0]);
}

#[tokio::test]
async fn three_dimensions_are_taken_together_or_not_at_all() {
    let bench = Bench::new().await;
    let third = window(AlgorithmKind::FixedWindow, 2, 60_000);
    for first in one_of_each() {
        for second in one_of_each() {
            let slots = ["user", "address", "channel"].map(|policy| slot(policy, &Uuid::new_v4().to_string()));
            let mut takes = [take(&slots[0], &first, 1), take(&slots[1], &second, 1), take(&slots[2], &third, 1)];
            for _ in 0..2 {
                let renewed = takes.map(|of| Take { lease: Some(Uuid::new_v4()), ..of });
                assert!(bench.limiter.at(DAWN).acquire(&renewed).await.unwrap().granted);
            }
            let before = bench.dump().await;
            for refusing in [2, 1, 0] {
                let answer = bench.limiter.at(DAWN).acquire(&takes).await.unwrap();
                let fits: Vec<bool> = answer.verdicts.iter().map(|verdict| verdict.unwrap().granted).collect();
                assert!(!answer.granted);
                assert_eq!(fits, [0, 1, 2].map(|place| place != refusing));
                assert_eq!(bench.dump().await, before, "{first:?} and {second:?}");
                takes.rotate_left(1);
            }
            bench.clear().await;
        }
    }
}

#[tokio::test]
async fn dimensions_that_cannot_meet_are_given_back() {
    let bench = Bench::new().await;
    let full = window(AlgorithmKind::FixedWindow, 1, 60_000);
    for first in one_of_each() {
        let spread = SlotKey::new("test", "user", &Uuid::new_v4().to_string(), true).unwrap();
        let last = SlotKey::new("test", "all", &Uuid::new_v4().to_string(), true).unwrap();
        assert!(bench.limiter.at(DAWN).acquire(&[take(&last, &full, 1)]).await.unwrap().granted);
        for _ in 0..10 {
            let takes = [take(&spread, &first, 3), take(&last, &full, 1)];
            let answer = bench.limiter.at(DAWN).acquire(&takes).await.unwrap();
            assert!(!answer.granted && answer.verdicts[0].unwrap().granted, "{first:?}: the second refuses, each time");
        }
        let rest = bench.limiter.at(DAWN).acquire(&[take(&spread, &first, 4)]).await.unwrap();
        assert!(rest.granted, "{first:?}: nothing was used up");

        // And the other way round the second is not asked.
        let takes = [take(&last, &full, 1), take(&spread, &first, 1)];
        let answer = bench.limiter.at(DAWN).acquire(&takes).await.unwrap();
        assert!(!answer.granted && answer.verdicts[1].is_none());
    }
    bench.clear().await;
}

#[tokio::test]
async fn one_limiter_twice_in_a_call_is_refused() {
    let bench = Bench::new().await;
    let (slot, algorithm) = (slot("p", "k"), window(AlgorithmKind::FixedWindow, 5, 60_000));
    let twice = [take(&slot, &algorithm, 1), take(&slot, &algorithm, 1)];
    assert!(matches!(bench.limiter.acquire(&twice).await, Err(GateError::Impossible)));
    let places = leases(1, 1000);
    let nameless = Take { lease: None, ..take(&slot, &places, 1) };
    assert!(matches!(bench.limiter.acquire(&[nameless]).await, Err(GateError::Impossible)));
    assert_eq!(bench.keys().await, [""; 0]);
}

#[tokio::test]
async fn a_key_without_an_end_gets_one_with_the_next_grant() {
    let mut bench = Bench::new().await;
    for algorithm in one_of_each() {
        let slot = slot("p", "k");
        bench.limiter.acquire(&[take(&slot, &algorithm, 1)]).await.unwrap();
        let key = bench.keys().await.remove(0);
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut bench.redis).await.unwrap();
        assert!((1..=4 * 60_000 + 5_000).contains(&ttl), "{ttl} for {algorithm:?}");
        let _: i64 = redis::cmd("PERSIST").arg(&key).query_async(&mut bench.redis).await.unwrap();
        assert!(bench.limiter.acquire(&[take(&slot, &algorithm, 1)]).await.unwrap().granted);
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut bench.redis).await.unwrap();
        assert!((1..=4 * 60_000 + 5_000).contains(&ttl), "{ttl} for {algorithm:?}");
        bench.clear().await;
    }
}

#[tokio::test]
async fn a_log_of_thousands_is_written_and_given_back_whole() {
    let bench = Bench::new().await;
    for algorithm in [window(AlgorithmKind::SlidingLog, 10_000, 60_000), leases(10_000, 60_000)] {
        let slot = slot("p", "k");
        let takes = [take(&slot, &algorithm, 9_999)];
        let answer = bench.limiter.acquire(&takes).await.unwrap();
        assert_eq!(answer.verdicts[0].unwrap().remaining, 1);
        assert!(!bench.limiter.acquire(&[take(&slot, &algorithm, 2)]).await.unwrap().granted);
        bench.limiter.give_back(&takes, &answer).await.unwrap();
        assert!(bench.limiter.acquire(&[take(&slot, &algorithm, 10_000)]).await.unwrap().granted);
    }
    bench.clear().await;
}

#[tokio::test]
async fn a_lease_is_released_once_and_a_crashed_holders_ends_by_itself() {
    let bench = Bench::new().await;
    let (slot, algorithm) = (slot("p", "k"), leases(3, 400));
    let held = take(&slot, &algorithm, 2);
    let answer = bench.limiter.acquire(&[held]).await.unwrap();
    assert!(answer.granted);
    let crashed = take(&slot, &algorithm, 1);
    assert!(bench.limiter.acquire(&[crashed]).await.unwrap().granted);
    let refused = bench.limiter.acquire(&[take(&slot, &algorithm, 1)]).await.unwrap();
    assert!(!refused.granted);

    assert!(bench.limiter.release(&slot, &algorithm, held.lease.unwrap()).await.unwrap());
    assert!(!bench.limiter.release(&slot, &algorithm, held.lease.unwrap()).await.unwrap(), "twice is harmless");
    let others = take(&slot, &algorithm, 2);
    assert!(bench.limiter.acquire(&[others]).await.unwrap().granted);

    // Nobody speaks for the crashed one: its place is free at the end of its lease, and not before.
    let began = Instant::now();
    let all = loop {
        let answer = bench.limiter.acquire(&[take(&slot, &algorithm, 1)]).await.unwrap();
        let verdict = answer.verdicts[0].unwrap();
        if answer.granted {
            break verdict;
        }
        assert!(verdict.retry_after_ms <= 400 && began.elapsed() < Duration::from_secs(10), "{verdict:?}");
        tokio::time::sleep(Duration::from_millis(verdict.retry_after_ms.unsigned_abs())).await;
    };
    assert!(all.at_us >= answer.verdicts[0].unwrap().at_us + 400_000);
    bench.clear().await;
}

#[tokio::test]
async fn no_limit_is_no_call_of_redis() {
    let bench = Bench::new().await;
    let slot = slot("p", "k");
    for unlimited in
        [window(AlgorithmKind::FixedWindow, -1, 1000), window(AlgorithmKind::SlidingLog, -1, 1000), leases(-1, 1000)]
    {
        let limited = bucket(AlgorithmKind::TokenBucket, 2, 1, 1000);
        let takes = [take(&slot, &unlimited, 1_000_000), take(&slot, &limited, 1)];
        let answer = bench.limiter.acquire(&takes).await.unwrap();
        let remaining: Vec<i64> = answer.verdicts.iter().map(|verdict| verdict.unwrap().remaining).collect();
        assert_eq!(remaining, [-1, 1]);
        bench.limiter.give_back(&takes, &answer).await.unwrap();
        assert_eq!(bench.keys().await.len(), 1);
    }
    bench.clear().await;
}

#[tokio::test]
async fn keys_of_callers_reach_redis_as_plain_letters() {
    let bench = Bench::new().await;
    let algorithm = window(AlgorithmKind::FixedWindow, 1, 60_000);
    for key in ["}{", "'; return 1 --", "\0\r\n", "é", "user:1", ""] {
        assert!(bench.limiter.acquire(&[take(&slot("p", key), &algorithm, 1)]).await.unwrap().granted, "{key:?}");
        assert!(!bench.limiter.acquire(&[take(&slot("p", key), &algorithm, 1)]).await.unwrap().granted, "{key:?}");
    }
    for key in bench.keys().await {
        let tail = key.strip_prefix(&format!("{}{{flow:test}}:p:fixed-window:", bench.prefix)).unwrap();
        assert!(tail.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"%_.:-".contains(&byte)), "{key}");
    }
    bench.clear().await;
}

#[tokio::test]
async fn a_sliding_counter_stays_compact() {
    let mut bench = Bench::new().await;
    let (slot, algorithm) = (slot("p", "k"), window(AlgorithmKind::SlidingCounter, 1_000_000_000, 1_000));
    // A permit in every sub-window of 8 ms, for three windows.
    for part in 0..375 {
        let answer = bench.limiter.at(DAWN + part * 8_000).acquire(&[take(&slot, &algorithm, 1)]).await.unwrap();
        let expected = 1_000_000_000 - (part + 1).min(126);
        assert_eq!(answer.verdicts[0].unwrap().remaining, expected, "125 parts, and the one that overlaps");
    }
    let key = bench.keys().await.remove(0);
    let encoding: String = redis::cmd("OBJECT").arg("ENCODING").arg(&key).query_async(&mut bench.redis).await.unwrap();
    assert_eq!(encoding, "listpack");
    bench.clear().await;
}

#[tokio::test]
async fn a_redis_that_says_nothing_costs_no_more_than_the_time_out() {
    // Connections are taken, and what is asked is never answered.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let limiter = limiter(&format!("redis://{}/", silent.local_addr().unwrap()), "t:", "50");
    let (slot, algorithm) = (slot("p", "k"), window(AlgorithmKind::FixedWindow, 1, 1000));
    for _ in 0..10 {
        let began = Instant::now();
        assert!(matches!(limiter.acquire(&[take(&slot, &algorithm, 1)]).await, Err(GateError::Unreachable(_))));
        assert!(began.elapsed() < Duration::from_millis(250), "{:?} where 50 ms are the bound", began.elapsed());
    }
}
