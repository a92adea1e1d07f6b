//! The limiters in Redis for their callers: all or nothing, refusals that write nothing, permits given back, leases.

use seckill_domain::limiter::{AlgorithmKind, SlotKey};
use seckill_redis::GateError;
use seckill_redis::limiter::Take;
use uuid::Uuid;

use crate::test_limiter::{Bench, DAWN, bucket, leases, one_of_each, slot, take, window};

#[tokio::test]
async fn a_refusal_writes_nothing() {
    let bench = Bench::new().await;
    for algorithm in one_of_each() {
        let slot = slot("p", "k");
        assert!(bench.grants(0, &[take(&slot, &algorithm, 3)]).await);
        let before = bench.dump().await;
        assert!(!bench.grants(0, &[take(&slot, &algorithm, 2)]).await, "{algorithm:?}");
        for permits in [0, 5, u32::MAX] {
            let refused = bench.limiter.at(DAWN).acquire(&[take(&slot, &algorithm, permits)]).await;
            assert!(matches!(refused, Err(GateError::InvalidRequest)), "{permits} of {algorithm:?}");
        }
        assert_eq!(bench.dump().await, before, "{algorithm:?}");
        assert!(bench.grants(0, &[take(&slot, &algorithm, 1)]).await, "{algorithm:?}");
    }
}

#[tokio::test]
async fn the_script_refuses_permits_that_are_not_whole_numbers() {
    let bench = Bench::new().await;
    let script = redis::Script::new(concat!(
        include_str!("../../lua/limit_begin.lua"),
        include_str!("../../lua/limit_fixed_window.lua"),
        include_str!("../../lua/acquire_permits.lua"),
    ));
    for permits in ["0", "-1", "1.5", "1e1", "0x1", "nan", "inf", "", " 1", "99999999999999999999", "6"] {
        let mut call = script.key(format!("{}k", bench.prefix));
        call.arg("").arg("fixed-window").arg(permits).arg(5).arg(60_000_000).arg(0).arg("").arg(0);
        let reply: Vec<i64> = call.invoke_async(&mut bench.redis.clone()).await.unwrap();
        assert_eq!(reply, [-2], "{permits:?}");
    }
    assert_eq!(bench.keys().await, [""; 0]);
}

#[tokio::test]
async fn three_limiters_grant_together_or_not_at_all() {
    let bench = Bench::new().await;
    let third = window(AlgorithmKind::FixedWindow, 2, 60_000);
    for first in one_of_each() {
        for second in one_of_each() {
            let slots = ["user", "address", "channel"].map(|policy| slot(policy, &Uuid::new_v4().to_string()));
            let mut takes = [take(&slots[0], &first, 1), take(&slots[1], &second, 1), take(&slots[2], &third, 1)];
            for _ in 0..2 {
                let with_new_leases = takes.map(|take| Take { lease: Some(Uuid::new_v4()), ..take });
                assert!(bench.grants(0, &with_new_leases).await);
            }
            let before = bench.dump().await;
            for refusing in [2, 1, 0] {
                let answer = bench.acquire(0, &takes).await;
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
async fn permits_of_another_hash_tag_are_given_back() {
    let bench = Bench::new().await;
    let full = window(AlgorithmKind::FixedWindow, 1, 60_000);
    for first in one_of_each() {
        let [spread, last] =
            ["user", "all"].map(|policy| SlotKey::new("test", policy, &Uuid::new_v4().to_string(), true));
        assert!(bench.grants(0, &[take(&last, &full, 1)]).await);
        for _ in 0..10 {
            let answer = bench.acquire(0, &[take(&spread, &first, 3), take(&last, &full, 1)]).await;
            assert!(!answer.granted && answer.verdicts[0].unwrap().granted, "{first:?}: the second refuses, each time");
        }
        let rest = bench.grants(0, &[take(&spread, &first, 4)]).await;
        assert!(rest, "{first:?}: the refused calls used up permits");

        // In the other order, the second limiter is not asked.
        let answer = bench.acquire(0, &[take(&last, &full, 1), take(&spread, &first, 1)]).await;
        assert!(!answer.granted && answer.verdicts[1].is_none());
    }
}

#[tokio::test]
async fn one_limiter_twice_in_a_call_is_an_error() {
    let bench = Bench::new().await;
    let (slot, algorithm, leases) = (slot("p", "k"), window(AlgorithmKind::FixedWindow, 5, 60_000), leases(1, 1000));
    let twice = [take(&slot, &algorithm, 1), take(&slot, &algorithm, 1)];
    assert!(matches!(bench.limiter.acquire(&twice).await, Err(GateError::InvalidRequest)));
    let without_id = Take { lease: None, ..take(&slot, &leases, 1) };
    assert!(matches!(bench.limiter.acquire(&[without_id]).await, Err(GateError::InvalidRequest)));
    assert_eq!(bench.keys().await, [""; 0]);
}

#[tokio::test]
async fn a_key_without_an_end_gets_one_with_the_next_grant() {
    let mut bench = Bench::new().await;
    for algorithm in one_of_each() {
        let slot = slot("p", "k");
        for _ in 0..2 {
            assert!(bench.grants(0, &[take(&slot, &algorithm, 1)]).await);
            let key = bench.keys().await.remove(0);
            let ttl: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut bench.redis).await.unwrap();
            assert!((1..=4 * 60_000 + 5_000).contains(&ttl), "{ttl} for {algorithm:?}");
            let _: i64 = redis::cmd("PERSIST").arg(&key).query_async(&mut bench.redis).await.unwrap();
        }
        bench.clear().await;
    }
}

#[tokio::test]
async fn a_lease_is_released_once_and_the_lease_of_a_crashed_holder_ends() {
    let bench = Bench::new().await;
    let (slot, algorithm) = (slot("p", "k"), leases(3, 400));
    let one = || [take(&slot, &algorithm, 1)];
    let held = take(&slot, &algorithm, 2);
    assert!(bench.grants(0, &[held]).await);
    assert!(bench.grants(100_000, &one()).await, "this holder crashes");
    assert!(!bench.grants(100_000, &one()).await);

    let release =
        async || bench.limiter.at(DAWN + 100_000).release(&slot, &algorithm, held.lease.unwrap()).await.unwrap();
    assert!(release().await);
    assert!(!release().await, "released twice");
    assert!(bench.grants(200_000, &[take(&slot, &algorithm, 2)]).await);

    // The crashed holder releases nothing: its permit is free at the end of its lease, and not before.
    assert_eq!(bench.acquire(200_000, &one()).await.verdicts[0].unwrap().retry_after_ms, 300);
    assert!(!bench.grants(499_000, &one()).await);
    assert!(bench.grants(500_000, &one()).await);
}

#[tokio::test]
async fn an_unlimited_policy_does_not_call_redis() {
    let bench = Bench::new().await;
    let slot = slot("p", "k");
    let windows = [AlgorithmKind::FixedWindow, AlgorithmKind::SlidingLog].map(|kind| window(kind, -1, 1000));
    for unlimited in windows.into_iter().chain([leases(-1, 1000)]) {
        let limited = bucket(AlgorithmKind::TokenBucket, 2, 1, 1000);
        let takes = [take(&slot, &unlimited, 1_000_000), take(&slot, &limited, 1)];
        let answer = bench.limiter.acquire(&takes).await.unwrap();
        let remaining: Vec<i64> = answer.verdicts.iter().map(|verdict| verdict.unwrap().remaining).collect();
        assert_eq!(remaining, [-1, 1]);
        bench.limiter.give_back(&takes, &answer).await.unwrap();
        assert_eq!(bench.keys().await.len(), 1);
    }
}

#[tokio::test]
async fn the_keys_of_callers_are_escaped() {
    let bench = Bench::new().await;
    let algorithm = window(AlgorithmKind::FixedWindow, 1, 60_000);
    for key in ["}{", "'; return 1 --", "\0\r\n", "é", "user:1", ""] {
        assert!(bench.grants(0, &[take(&slot("p", key), &algorithm, 1)]).await, "{key:?}");
        assert!(!bench.grants(0, &[take(&slot("p", key), &algorithm, 1)]).await, "{key:?}");
    }
    for key in bench.keys().await {
        let tail = key.strip_prefix(&format!("{}{{flow:test}}:p:fixed-window:", bench.prefix)).unwrap();
        assert!(tail.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"%_.:-".contains(&byte)), "{key}");
    }
}

#[tokio::test]
async fn a_sliding_counter_keeps_the_compact_form() {
    let mut bench = Bench::new().await;
    let (slot, algorithm) = (slot("p", "k"), window(AlgorithmKind::SlidingCounter, 1_000_000_000, 1_000));
    // A permit in every sub-window of 8 ms, for three windows.
    for part in 0..375 {
        let answer = bench.acquire(part * 8_000, &[take(&slot, &algorithm, 1)]).await;
        let expected = 1_000_000_000 - (part + 1).min(126);
        assert_eq!(answer.verdicts[0].unwrap().remaining, expected, "125 sub-windows, and the one that overlaps");
    }
    let key = bench.keys().await.remove(0);
    let encoding: String = redis::cmd("OBJECT").arg("ENCODING").arg(&key).query_async(&mut bench.redis).await.unwrap();
    assert_eq!(encoding, "listpack");
}
