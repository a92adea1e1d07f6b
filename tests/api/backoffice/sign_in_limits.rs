//! Sign-in under attack: which users a stranger's wrong passwords lock out, and the cost of checking passwords.

use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;

use futures_util::future::join_all;
use reqwest::Client;
use reqwest::header::{COOKIE, SET_COOKIE};
use seckill_domain::account::AccountRole;
use serde_json::json;

use crate::backoffice::admin_api::{PASSWORD, account};
use crate::buying::purchase_limits::accepted_at_once;
use crate::network::service_killed::Process;
use seckill_harness::folder::free_address;
use seckill_harness::{Answer, System, terms};

/// Tests of guesses share a system. Each has its own accounts and client addresses.
pub const GUESSED: [(&str, &str); 1] = [("SECKILL_ADMIN__LOGIN_LIMIT", "2")];

pub const WRONG: &str = "not the password, and secret";
/// The name of the device's cookie in development mode.
const DEVICE: &str = "seckill_device=";

/// An attempt to sign in from an address, by a browser with this cookie.
pub async fn attempt(system: &System, name: &str, password: &str, from: &str, cookie: Option<&str>) -> Answer {
    attempt_at(system.instances[0].address, name, password, from, cookie).await
}

async fn attempt_at(at: SocketAddr, name: &str, password: &str, from: &str, cookie: Option<&str>) -> Answer {
    let body = json!({ "name": name, "password": password });
    let mut request = Client::new().post(format!("http://{at}/api/v1/admin/session")).json(&body);
    request = request.header("x-forwarded-for", from);
    if let Some(cookie) = cookie {
        request = request.header(COOKIE, cookie);
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Answer { status, body: response.json().await.unwrap(), headers }
}

/// The device's cookie that an answer sets, as the browser sends it back.
pub fn device(answer: &Answer) -> String {
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
    let system = System::shared_with(&GUESSED).await;
    account(&system, "hammered", AccountRole::Admin).await;
    for n in 0..40 {
        let answer = attempt(&system, "hammered", WRONG, "10.2.0.1", None).await;
        assert_eq!(answer.status, if n < 2 { 401 } else { 429 }, "attempt {n}");
    }
    let refused = attempt(&system, "hammered", PASSWORD, "10.2.0.1", None).await;
    assert_eq!(limit(&refused), "\"account-address\";q=2;w=600", "even with the right password");
    assert_eq!(attempt(&system, "hammered", PASSWORD, "10.2.0.2", None).await.status, 200);
    // It cannot lock out its neighbours behind the same address either, by guessing at one account.
    account(&system, "neighbour", AccountRole::Viewer).await;
    assert_eq!(attempt(&system, "neighbour", PASSWORD, "10.2.0.1", None).await.status, 200);
}

/// A20 from many addresses: the account's own limit refuses strangers only.
#[tokio::test(flavor = "multi_thread")]
async fn many_addresses_lock_out_only_strangers() {
    let system = System::shared_with(&GUESSED).await;
    for name in ["besieged", "eve"] {
        account(&system, name, AccountRole::Admin).await;
    }
    let home = attempt(&system, "besieged", PASSWORD, "10.9.0.1", None).await;
    assert_eq!(home.status, 200);
    let eves = device(&attempt(&system, "eve", PASSWORD, "10.9.0.2", None).await);
    // The first sign-in was a stranger's too.
    for n in 1..20 {
        assert_eq!(attempt(&system, "besieged", WRONG, &format!("10.0.0.{n}"), None).await.status, 401, "attempt {n}");
    }
    for (from, cookie) in [
        ("10.8.0.1", None),
        ("10.8.0.2", Some(eves)),
        ("10.8.0.3", Some(format!("{DEVICE}{}", "0".repeat(64)))),
        ("10.8.0.4", Some(format!("{DEVICE}{}", "0.".repeat(20_000)))),
        ("10.9.0.2", None),
    ] {
        let refused = attempt(&system, "besieged", PASSWORD, from, cookie.as_deref()).await;
        assert_eq!(limit(&refused), "\"account\";q=20;w=3600", "{from}");
    }
    // An unknown name has the same limit: the answers do not show which names exist.
    for n in 0..20 {
        assert_eq!(attempt(&system, "nobody", WRONG, &format!("10.1.0.{n}"), None).await.status, 401, "attempt {n}");
    }
    let refused = attempt(&system, "nobody", WRONG, "10.1.0.77", None).await;
    assert_eq!(limit(&refused), "\"account\";q=20;w=3600");
    // A user who has signed in from this address, or with this browser, is no stranger.
    assert_eq!(attempt(&system, "besieged", PASSWORD, "10.9.0.1", None).await.status, 200);
    assert_eq!(attempt(&system, "besieged", PASSWORD, "10.7.0.1", Some(&device(&home))).await.status, 200);
}

/// A guesser behind the administrator's own address.
#[tokio::test(flavor = "multi_thread")]
async fn a_known_browser_is_limited_by_itself_alone() {
    let system = System::shared_with(&GUESSED).await;
    account(&system, "known", AccountRole::Admin).await;
    let known = device(&attempt(&system, "known", PASSWORD, "10.3.0.1", None).await);
    attempt(&system, "known", WRONG, "10.3.0.1", None).await;
    for n in 0..4 {
        attempt(&system, &format!("unknown{n}"), WRONG, "10.3.0.1", None).await;
    }
    let refused = attempt(&system, "unknown", WRONG, "10.3.0.1", None).await;
    assert_eq!(limit(&refused), "\"address\";q=6;w=600");
    let again = attempt(&system, "known", PASSWORD, "10.3.0.1", Some(&known)).await;
    assert_eq!(again.status, 200);
    // A known browser stays the same one: it cannot collect attempts.
    assert_eq!(attempt(&system, "known", WRONG, "10.3.0.1", Some(&device(&again))).await.status, 401);
    let refused = attempt(&system, "known", PASSWORD, "10.3.0.1", Some(&known)).await;
    assert_eq!(limit(&refused), "\"device\";q=2;w=600");
}

/// The threads of a process with this name: the nice value of each, and its processor time in ticks.
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

/// A crowd that signs in takes one thread, which yields to all others. Requests beyond a short line get 503.
#[tokio::test(flavor = "multi_thread")]
async fn passwords_are_checked_by_a_thread_of_their_own_in_a_bounded_line() {
    let system = System::prepare(&[("SECKILL_DATABASE__MAX_CONNECTIONS", "64")]).await;
    let address = free_address();
    let process = Process::start_with(&system, address, &[("RUST_LOG", "error")], Stdio::inherit());
    let process = process.ready(address).await;
    let sale = system.create_sale(terms(30)).await;
    let before = threads(&process, "passwords");
    let crowd = (0..200).map(|n| {
        let (name, from) = (format!("nobody{n}"), format!("10.0.{n}.1"));
        async move { attempt_at(address, &name, WRONG, &from, None).await }
    });
    let buyers = async {
        let mut at_once = 0;
        for n in 0..30 {
            let user = format!("b{n}");
            at_once += usize::from(accepted_at_once(system.buy_at(address, &sale, &user).idempotent("k")).await);
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
    system.settled(&sale).await;
    process.end();
    system.finish().await;
}
