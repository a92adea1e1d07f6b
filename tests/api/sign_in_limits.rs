//! Sign-in under attack: whom a stranger's wrong passwords keep out, and what checking passwords may cost.

use std::fs;
use std::process::Stdio;

use futures_util::future::join_all;
use reqwest::Client;
use reqwest::header::{COOKIE, SET_COOKIE};
use seckill::domain::account::AccountRole;
use serde_json::json;

use crate::admin_api::{PASSWORD, account};
use crate::permits_and_policies::patient;
use crate::purchase_limits::accepted_at_once;
use crate::service_killed::Process;
use seckill_harness::folder::free_address;
use seckill_harness::{Answer, System, terms};

const WRONG: &str = "not the password";
/// As answers name the device's cookie in development mode.
const DEVICE: &str = "seckill_device=";

/// An attempt to sign in from an address, by a browser that has this cookie.
async fn attempt(system: &System, name: &str, password: &str, from: &str, cookie: Option<&str>) -> Answer {
    let body = json!({ "name": name, "password": password });
    let mut request = Client::new().post(system.url("/api/v1/admin/session")).json(&body);
    request = request.header("x-forwarded-for", from);
    if let Some(cookie) = cookie {
        request = request.header(COOKIE, cookie);
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Answer { status, body: response.json().await.unwrap(), headers }
}

/// The device's cookie that an answer sets, as the browser sends it back.
fn device(answer: &Answer) -> String {
    let mut cookies = answer.headers.get_all(SET_COOKIE).iter().map(|value| value.to_str().unwrap());
    let cookie = cookies.find(|cookie| cookie.starts_with(DEVICE)).expect("a cookie that names the device");
    cookie.split(';').next().unwrap().to_owned()
}

fn limit(answer: &Answer) -> &str {
    assert_eq!(answer.code(), "429 quota-exceeded");
    answer.headers["ratelimit-policy"].to_str().unwrap()
}

/// A20: the address is limited, and the administrator signs in.
#[tokio::test(flavor = "multi_thread")]
async fn one_address_cannot_lock_an_administrator_out() {
    let system = patient(&[("SECKILL_ADMIN__LOGIN_LIMIT", "3")]).await;
    account(&system, "root", AccountRole::Admin).await;
    for n in 0..40 {
        let answer = attempt(&system, "root", WRONG, "10.0.0.1", None).await;
        assert_eq!(answer.status, if n < 3 { 401 } else { 429 }, "attempt {n}");
    }
    let refused = attempt(&system, "root", PASSWORD, "10.0.0.1", None).await;
    assert_eq!(limit(&refused), "\"account-address\";q=3;w=600", "even with the right password");
    assert_eq!(attempt(&system, "root", PASSWORD, "10.0.0.2", None).await.status, 200);
    // Nor can it lock out its neighbours behind the same address by guessing at one account.
    account(&system, "ann", AccountRole::Viewer).await;
    assert_eq!(attempt(&system, "ann", PASSWORD, "10.0.0.1", None).await.status, 200);
    system.finish().await;
}

/// A20 from many addresses: the account's own limit refuses strangers only.
#[tokio::test(flavor = "multi_thread")]
async fn many_addresses_lock_out_only_strangers() {
    let system = patient(&[("SECKILL_ADMIN__LOGIN_LIMIT", "2")]).await;
    for name in ["root", "eve"] {
        account(&system, name, AccountRole::Admin).await;
    }
    let home = attempt(&system, "root", PASSWORD, "10.9.0.1", None).await;
    assert_eq!(home.status, 200);
    let eves = device(&attempt(&system, "eve", PASSWORD, "10.9.0.2", None).await);
    // The first sign-in was a stranger's, too.
    for n in 1..20 {
        assert_eq!(attempt(&system, "root", WRONG, &format!("10.0.0.{n}"), None).await.status, 401, "attempt {n}");
    }
    for (from, cookie) in [
        ("10.8.0.1", None),
        ("10.8.0.2", Some(eves)),
        ("10.8.0.3", Some(format!("{DEVICE}{}", "0".repeat(64)))),
        ("10.8.0.4", Some(format!("{DEVICE}{}", "0.".repeat(20_000)))),
        ("10.9.0.2", None),
    ] {
        let refused = attempt(&system, "root", PASSWORD, from, cookie.as_deref()).await;
        assert_eq!(limit(&refused), "\"account\";q=20;w=3600", "{from}");
    }
    // The same limit for a name that no account has: the answers do not tell which exist.
    for n in 0..20 {
        assert_eq!(attempt(&system, "nobody", WRONG, &format!("10.1.0.{n}"), None).await.status, 401, "attempt {n}");
    }
    let refused = attempt(&system, "nobody", WRONG, "10.1.0.77", None).await;
    assert_eq!(limit(&refused), "\"account\";q=20;w=3600");
    // Who has signed in from here, or with this browser, is no stranger.
    assert_eq!(attempt(&system, "root", PASSWORD, "10.9.0.1", None).await.status, 200);
    assert_eq!(attempt(&system, "root", PASSWORD, "10.7.0.1", Some(&device(&home))).await.status, 200);
    system.finish().await;
}

/// A guesser behind the administrator's own address.
#[tokio::test(flavor = "multi_thread")]
async fn a_known_browser_is_limited_by_itself_alone() {
    let system = patient(&[("SECKILL_ADMIN__LOGIN_LIMIT", "2")]).await;
    account(&system, "root", AccountRole::Admin).await;
    let known = device(&attempt(&system, "root", PASSWORD, "10.9.0.1", None).await);
    attempt(&system, "root", WRONG, "10.9.0.1", None).await;
    for n in 0..4 {
        attempt(&system, &format!("nobody{n}"), WRONG, "10.9.0.1", None).await;
    }
    let refused = attempt(&system, "nobody", WRONG, "10.9.0.1", None).await;
    assert_eq!(limit(&refused), "\"address\";q=6;w=600");
    let again = attempt(&system, "root", PASSWORD, "10.9.0.1", Some(&known)).await;
    assert_eq!(again.status, 200);
    // A browser that is known already stays the same one: it cannot collect attempts.
    assert_eq!(attempt(&system, "root", WRONG, "10.9.0.1", Some(&device(&again))).await.status, 401);
    let refused = attempt(&system, "root", PASSWORD, "10.9.0.1", Some(&known)).await;
    assert_eq!(limit(&refused), "\"device\";q=2;w=600");
    system.finish().await;
}

/// The threads of a process that have this name: how often each gives way to others, and its processor time in ticks.
fn threads(process: &Process, named: &str) -> Vec<(i64, u64)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let of_name = stats.filter_map(|stat| {
        let (head, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let ticks = fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?;
        let (_, name) = head.split_once('(')?;
        name.starts_with(named).then_some((fields[16].parse().ok()?, ticks))
    });
    of_name.collect()
}

/// A crowd that signs in takes one thread, which gives way to all others. What is more than a short line hears 503.
#[tokio::test(flavor = "multi_thread")]
async fn passwords_are_checked_by_a_thread_of_their_own_in_a_bounded_line() {
    let mut system = System::start_with(&[("SECKILL_DATABASE__MAX_CONNECTIONS", "64")]).await;
    account(&system, "root", AccountRole::Admin).await;
    let sale = system.create_sale(terms(30)).await;
    let address = free_address();
    let process = Process::start_with(&system, address, &[("RUST_LOG", "error")], Stdio::inherit());
    let process = process.ready(address).await;
    let own = std::mem::replace(&mut system.instances[0].address, address);
    let before = threads(&process, "passwords");
    let crowd = (0..200).map(|n| {
        let (system, name, from) = (&system, format!("nobody{n}"), format!("10.0.{n}.1"));
        async move { attempt(system, &name, WRONG, &from, None).await }
    });
    let buyers = async {
        let mut at_once = 0;
        for n in 0..30 {
            let user = format!("b{n}");
            at_once += usize::from(accepted_at_once(system.buy(&sale, &user).idempotent("k")).await);
        }
        at_once
    };
    let (answers, at_once) = tokio::join!(join_all(crowd), buyers);
    assert!(at_once > 20, "{at_once} of 30 purchases were accepted at once");
    let of = |code: &str| answers.iter().filter(|answer| answer.code() == code).count();
    let (checked, shed) = (of("401 wrong-credentials"), of("503 temporarily-unavailable"));
    assert!(checked > 0 && shed > 0 && checked + shed == 200, "{checked} checked, {shed} shed");
    let after = threads(&process, "passwords");
    assert_eq!((before.len(), after.len()), (1, 1));
    let ((_, idle), (nice, busy)) = (before[0], after[0]);
    assert_eq!(nice, 19);
    assert!(busy > idle, "{checked} passwords were checked elsewhere");
    system.instances[0].address = own;
    process.end();
    system.settled(&sale).await;
    system.finish().await;
}
