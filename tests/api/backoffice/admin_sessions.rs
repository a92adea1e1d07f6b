//! What ends the sessions of an account at every instance, and how much one account can write into the audit log.

use std::cell::Cell;
use std::io::Write;
use std::process::{Command, Stdio};

use seckill_backoffice::admin::password::hash_new;
use seckill_domain::account::{AccountName, AccountRole, NewPassword};
use serde_json::{Value, json};

use crate::backoffice::admin_api::{PASSWORD, Person, UNLIMITED, account, send};
use seckill_harness::{System, until};

const OTHER_PASSWORD: &str = "another password of the tests";

/// Runs a command of the program with this text on its standard input. Returns its output or its error.
pub fn seckill(system: &System, arguments: &[&str], typed: &str) -> Result<String, String> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_seckill"))
        .args(arguments)
        .envs(&system.environment)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that reads nothing may have ended already.
    _ = child.stdin.take().unwrap().write_all(typed.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Two sessions of an account, one used at each instance.
async fn two_sessions(system: &System, name: &str) -> [Person; 2] {
    let mut people = Vec::new();
    for instance in &system.instances {
        people.push(Person::sign_in(system, name).await.at(instance.address));
    }
    let people: [Person; 2] = people.try_into().ok().unwrap();
    assert_eq!(sessions(system, &people).await, ["200"; 4]);
    people
}

/// The answer to each session at each instance.
async fn sessions(system: &System, people: &[Person; 2]) -> Vec<String> {
    let mut answers = Vec::new();
    for person in people {
        for instance in &system.instances {
            answers.push(person.at(instance.address).get("session").await.code());
        }
    }
    answers
}

async fn sign_in(system: &System, name: &str, password: &str) -> String {
    let credentials = json!({ "name": name, "password": password });
    Person::signed_out(system).post("session", credentials).await.code()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_ends_sessions_ends_them_at_every_instance_at_once() {
    const ENDED: [&str; 4] = ["401 signed-out"; 4];
    let mut system = System::prepare(&[("SECKILL_ADMIN__LOGIN_LIMIT", "1000")]).await;
    for _ in 0..2 {
        system.serve(false).await;
    }
    account(&system, "vic", AccountRole::Viewer).await;
    account(&system, "root", AccountRole::Admin).await;

    let admin = |command: &str, typed: &str| {
        let typed = format!("{typed}\n");
        seckill(&system, &["admin", command, "--name", "vic"], &typed).unwrap();
    };
    let people = two_sessions(&system, "vic").await;
    admin("password", OTHER_PASSWORD);
    assert_eq!(sessions(&system, &people).await, ENDED, "a changed password");
    assert_eq!(sign_in(&system, "vic", PASSWORD).await, "401 wrong-credentials");
    assert_eq!(sign_in(&system, "vic", OTHER_PASSWORD).await, "200");
    admin("password", PASSWORD);

    let people = two_sessions(&system, "vic").await;
    admin("disable", "");
    assert_eq!(sessions(&system, &people).await, ENDED, "a disabled account");
    assert_eq!(sign_in(&system, "vic", PASSWORD).await, "401 wrong-credentials");
    admin("enable", "");
    assert_eq!(sessions(&system, &people).await, ENDED, "sessions do not come back");

    let people = two_sessions(&system, "vic").await;
    admin("sign-out", "");
    assert_eq!(sessions(&system, &people).await, ENDED, "signed out on the command line");

    let people = two_sessions(&system, "vic").await;
    assert_eq!(people[1].delete("sessions").await.body, json!({ "ended": 2 }));
    assert_eq!(sessions(&system, &people).await, ENDED, "signed out by the account itself");

    // Only an admin ends the sessions of others.
    let (people, roots) = (two_sessions(&system, "vic").await, two_sessions(&system, "root").await);
    for named in ["root", "nobody"] {
        let refused = people[0].delete(&format!("sessions?account={named}")).await;
        assert_eq!(refused.code(), "403 forbidden");
    }
    assert_eq!(roots[0].delete("sessions?account=nobody").await.code(), "404 not-found");
    assert_eq!(roots[0].delete("sessions?account=vic").await.body, json!({ "ended": 2 }));
    assert_eq!(sessions(&system, &people).await, ENDED, "signed out by an admin");
    assert_eq!(sessions(&system, &roots).await, ["200"; 4]);

    // SQL by hand has the same effect.
    let of = AccountName::parse("vic", "name").unwrap();
    let hash = hash_new(NewPassword::parse(PASSWORD.into(), &of).unwrap()).unwrap();
    for change in [
        format!("UPDATE accounts SET password_hash = '{hash}' WHERE name = 'vic'"),
        "UPDATE accounts SET disabled_at = now() WHERE name = 'vic'".to_owned(),
    ] {
        let people = two_sessions(&system, "vic").await;
        system.execute(change.as_str()).await;
        assert_eq!(sessions(&system, &people).await, ENDED, "{change}");
    }

    let listed = seckill(&system, &["admin", "list", "--format", "json"], "").unwrap();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let seen = |n: usize| [&listed[n]["name"], &listed[n]["role"], &listed[n]["status"], &listed[n]["sessions"]];
    assert_eq!(seen(0), [&json!("root"), &json!("admin"), &json!("enabled"), &json!(2)]);
    assert_eq!(seen(1), [&json!("vic"), &json!("viewer"), &json!("disabled"), &json!(0)]);
    for command in ["password", "disable", "enable", "sign-out"] {
        let error = seckill(&system, &["admin", command, "--name", "nobody"], &format!("{PASSWORD}\n")).unwrap_err();
        assert!(error.contains("there is no account nobody"), "{command}: {error}");
    }
    system.stop().await;
}

/// The password is right when it is checked, and changes before the session opens.
#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_under_way_does_not_outlive_a_change_of_the_password() {
    let system = System::shared_with(&UNLIMITED).await;
    account(&system, "changing", AccountRole::Admin).await;
    let of = AccountName::parse("changing", "name").unwrap();
    let (mut old, mut new, mut tried) = (PASSWORD, OTHER_PASSWORD, 0);
    let code = loop {
        let hash = hash_new(NewPassword::parse(new.into(), &of).unwrap()).unwrap();
        let mut change = system.sql.begin().await.unwrap();
        let changed = "UPDATE accounts SET password_hash = $1 WHERE name = 'changing' RETURNING pg_backend_pid()";
        let changed = sqlx::query_scalar(changed);
        let holder: i32 = changed.bind(hash).fetch_one(&mut *change).await.unwrap();
        let is_answered = Cell::new(false);
        // Sent once: a repeat would come after the change.
        let credentials = json!({ "name": "changing", "password": old });
        let signing_in = async {
            let answer = send(Person::signed_out(&system).request("POST", "session", Some(credentials))).await;
            is_answered.set(true);
            answer.code()
        };
        let committed = async {
            // The session waits for the account's row.
            until(true, || async {
                let waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))";
                let waits: bool = sqlx::query_scalar(waits).bind(holder).fetch_one(&system.sql).await.unwrap();
                waits || is_answered.get()
            })
            .await;
            change.commit().await.unwrap();
        };
        let (code, ()) = tokio::join!(signing_in, committed);
        tried += 1;
        // On a busy machine the sign-in may give up before the change. Then the password is changed back.
        if !code.starts_with("503") || tried == 20 {
            break code;
        }
        (old, new) = (new, old);
    };
    assert_eq!(code, "401 wrong-credentials");
    let open = "SELECT count(*) FROM sessions WHERE account = 'changing'";
    assert_eq!(system.value::<i64>(open).await, 0);
}

/// An actor may write 31 lines in a minute, one of them for the sign-in. The requests of a test may take several minutes.
async fn assert_bounded(system: &System, actor: &str) {
    let lines = "SELECT coalesce(sum(lines), 0)::bigint, coalesce(max(lines), 0) FROM (
                   SELECT count(*) AS lines FROM audit_log WHERE actor = $1 GROUP BY date_trunc('minute', at)) AS minutes";
    let lines = sqlx::query_as(lines).bind(actor).fetch_one(&system.sql);
    let (all, busiest): (i64, i64) = lines.await.unwrap();
    assert!(all >= 10 && busiest <= 31, "{actor}: {all} lines, at most {busiest} in a minute");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_fills_the_audit_log_by_being_refused() {
    let mut system = System::without_workers(&[("SECKILL_ADMIN__LOGIN_LIMIT", "1000")]).await;
    account(&system, "vic", AccountRole::Viewer).await;
    account(&system, "root", AccountRole::Admin).await;
    let (vic, root) = (Person::sign_in(&system, "vic").await, Person::sign_in(&system, "root").await);
    for n in 0..100 {
        let answer = match n % 4 {
            0 => vic.get("audit-log").await,
            1 => vic.post("apps", json!({ "name": "mine" })).await,
            2 => vic.get(&format!("policies?app=app{n}")).await,
            _ => vic.forged().delete("session").await,
        };
        assert!([403, 404].contains(&answer.status), "{}", answer.code());
    }
    // The first refusals are written. One account's refusals hide no other account's.
    assert_bounded(&system, "vic").await;
    let unwritten = "SELECT count(*) FROM audit_log WHERE actor = 'root' AND action = 'refused'";
    assert_eq!(send(root.forged().request("DELETE", "session", None)).await.status, 403);
    assert_eq!(system.value::<i64>(unwritten).await, 1);

    // The next line says how many lines were left out.
    let written = "SELECT count(*) FROM audit_log WHERE actor = 'vic' AND action = 'refused'";
    let written: i64 = system.value(written).await;
    system.execute("UPDATE audit_counts SET minute = minute - interval '1 minute'").await;
    assert_eq!(vic.get("audit-log").await.status, 403);
    let log = root.get("audit-log").await.body;
    let sum: i64 =
        log["lines"].as_array().unwrap().iter().filter_map(|line| line["details"]["unwritten"].as_i64()).sum();
    assert_eq!(sum, 100 - written);

    // Guesses at unknown names share one allowance, so that they hide no guess at an account.
    for n in 0..60 {
        assert_eq!(sign_in(&system, &format!("nobody{n}"), PASSWORD).await, "401 wrong-credentials");
    }
    assert_eq!(sign_in(&system, "root", OTHER_PASSWORD).await, "401 wrong-credentials");
    assert_bounded(&system, "anonymous").await;
    let guessed = "SELECT count(*) FROM audit_log WHERE action = 'sign-in refused' AND subject = 'account root'";
    assert_eq!(system.value::<i64>(guessed).await, 1);
    system.stop().await;
}
