//! `seckill doctor`: each check finds its fault, planted in a real server, and raises no false alarm.

mod postgres_faults;
mod rabbitmq_faults;
mod redis_faults;
mod settings_faults;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use seckill::doctor::{Check, Report, Verdict, examine};
use seckill_config::Config;
use seckill_harness::{Environment, PATIENCE, System, eventually, quiet_environment, until};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::time::timeout;

/// The time-out of servers on a slow machine. A passing check never takes this long.
const LONG: Duration = Duration::from_secs(60);
/// The harness gives the other servers the same time.
const SLOW_BROKER: (&str, &str) = ("SECKILL_AMQP__CONNECT_TIMEOUT_MS", "20000");
/// Findings that the tests' environment has on purpose, as the environment of `./dev` has.
const JUSTIFIED: [(&str, Verdict); 6] = [
    ("settings.development", Verdict::Warn),
    ("settings.secrets", Verdict::Warn),
    ("settings.receivers", Verdict::Warn),
    ("settings.play-bank", Verdict::Warn),
    ("postgres.role", Verdict::Warn),
    ("rabbitmq.policies", Verdict::Unknown),
];

/// The doctor's findings, by the names of the checks.
struct Look {
    verdict: Verdict,
    checks: BTreeMap<&'static str, Check>,
}

impl Look {
    async fn at(config: &Config) -> Self {
        Self::within(config, LONG).await
    }

    async fn within(config: &Config, limit: Duration) -> Self {
        let Report { verdict, checks } = timeout(PATIENCE, examine(config, limit)).await.expect("the look ends");
        Self { verdict, checks: checks.into_iter().map(|check| (check.name, check)).collect() }
    }

    /// With these settings added to the environment's.
    async fn with(environment: &Environment, settings: &[(&str, &str)]) -> Self {
        Self::at(&config(environment, settings)).await
    }

    fn verdict(&self, name: &str) -> Verdict {
        self.checks[name].verdict
    }

    /// Asserts the verdict of a check, and that every finding has a fix.
    #[track_caller]
    fn shows(&self, name: &str, verdict: Verdict, found: &str) {
        let check = &self.checks[name];
        assert!(check.verdict == verdict && check.found.contains(found), "{verdict} and {found} in {check:#?}");
        assert_eq!(check.fix.is_none(), verdict == Verdict::Pass, "{check:#?}");
        assert!(!check.endangers.is_empty(), "{check:#?}");
    }

    /// The checks of one server, or of the settings.
    fn of<'a>(&'a self, server: &'a str) -> impl Iterator<Item = &'a Check> {
        self.checks.values().filter(move |check| check.name.split('.').next() == Some(server))
    }
}

fn config(environment: &Environment, settings: &[(&str, &str)]) -> Config {
    let mut environment = environment.clone();
    environment.insert(SLOW_BROKER.0.to_owned(), SLOW_BROKER.1.to_owned());
    environment.extend(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    Config::read(&environment).unwrap()
}

/// Waits until a check has this verdict: a server may show a change shortly after it was made.
async fn shows_in_time(look: impl AsyncFn() -> Look, name: &str, verdict: Verdict, found: &str) {
    eventually(|| async {
        let look = look().await;
        let check = &look.checks[name];
        let right = check.verdict == verdict && check.found.contains(found);
        right.then_some(()).ok_or_else(|| format!("{verdict} and {found} in {check:#?}"))
    })
    .await;
}

/// No false alarm: the servers of `./dev`, with a running service and its settings.
#[tokio::test(flavor = "multi_thread")]
async fn on_the_servers_of_dev_nothing_is_alarming() {
    let system = System::shared_with(&[SLOW_BROKER]).await;
    eventually(|| async {
        let look = Look::at(&system.config).await;
        let alarming: Vec<&Check> = look
            .checks
            .values()
            .filter(|check| check.verdict != Verdict::Pass && !JUSTIFIED.contains(&(check.name, check.verdict)))
            .collect();
        // The workers declare the queues shortly after the start.
        (alarming.is_empty() && look.verdict == Verdict::Warn).then_some(()).ok_or_else(|| format!("{alarming:#?}"))
    })
    .await;
}

/// A server that is away makes its own checks unknown, and the checks that compare it with another server. No other check changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_hides_no_other() {
    let environment = quiet_environment().await;
    for (variable, away, server, compared) in [
        ("REDIS_URL", "redis://127.0.0.1:1/", "redis", &[] as &[&str]),
        ("DATABASE_URL", "postgres://seckill@127.0.0.1:1/x", "postgres", &["redis.clock", "redis.memory"]),
        ("AMQP_URL", "amqp://127.0.0.1:1/%2f", "rabbitmq", &[]),
    ] {
        let look = Look::with(&environment, &[(variable, away)]).await;
        for check in look.checks.values() {
            let own = check.name.starts_with(server) || compared.contains(&check.name);
            // Without servers of their own, locks are kept by the sales' server.
            let unknown = own && check.name != "redis.locks" || check.name == "rabbitmq.policies";
            assert_eq!(check.verdict == Verdict::Unknown, unknown, "{variable}: {check:#?}");
        }
        assert_eq!(look.verdict, Verdict::Unknown, "{variable}");
    }
}

/// The doctor gives up servers that accept connections and say nothing after the time that the program allows.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_say_nothing_are_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = silent.local_addr().unwrap();
    let (redis, postgres) = (format!("redis://{at}/"), format!("postgres://seckill@{at}/x"));
    let amqp = format!("amqp://{at}/%2f");
    let environment = quiet_environment().await;
    let locks = ("SECKILL_REDIS__LOCK_URLS", redis.as_str());
    let all = [("REDIS_URL", redis.as_str()), locks, ("DATABASE_URL", postgres.as_str()), ("AMQP_URL", amqp.as_str())];
    let look = Look::within(&config(&environment, &all), Duration::from_millis(seckill::doctor::LIMIT_MS)).await;
    for check in ["redis", "postgres", "rabbitmq"].iter().flat_map(|server| look.of(server)) {
        assert_eq!(check.verdict, Verdict::Unknown, "{check:#?}");
    }
    assert_eq!(look.verdict, Verdict::Unknown);
}

/// The table and the document say the same. The exit code is 0, 1 or 2, and no secret is printed.
#[tokio::test(flavor = "multi_thread")]
async fn the_program_tells_by_its_exit_code() {
    let system = System::shared_with(&[SLOW_BROKER]).await;
    let secret = system.environment["SECKILL_AUTH__JWT_SECRET"].clone();
    let doctor = |arguments: &[&str], settings: &[(&str, &str)]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_seckill"));
        program.arg("doctor").args(["--timeout-ms", "60000"]).args(arguments);
        program.env_clear().envs(&system.environment).envs(settings.iter().copied());
        let ended = program.output().unwrap();
        let (out, err) = (String::from_utf8(ended.stdout).unwrap(), String::from_utf8(ended.stderr).unwrap());
        assert!(!out.contains(&secret) && !err.contains(&secret));
        (ended.status.code(), out, err)
    };
    until(Some(0), || async { doctor(&["--json"], &[]).0 }).await;
    let (code, out, err) = doctor(&["--json"], &[("SECKILL_REDIS__LOCK_URLS", &system.config.redis.url)]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["verdict"], err.as_str()), (Some(0), &Value::from("warn"), ""));
    for check in report["checks"].as_array().unwrap() {
        let fields: BTreeSet<&str> = check.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, ["endangers", "fix", "found", "name", "verdict"].into(), "{check}");
    }

    // Development mode that other machines can reach is unsafe.
    let (code, out, err) = doctor(&[], &[("SECKILL_HTTP__BIND", "0.0.0.0:8080")]);
    assert_eq!((code, err.as_str()), (Some(1), ""), "{out}");
    let (advice, table) = out.split_once("verdict").unwrap();
    for part in ["fail: settings.development: ", "\n  endangers: ", "\n  fix: "] {
        assert!(advice.contains(part), "{advice}");
    }
    assert!(report["checks"].as_array().unwrap().iter().all(|check| table.contains(check["name"].as_str().unwrap())));

    let (code, out, err) = doctor(&["--json"], &[("AMQP_URL", "amqp://127.0.0.1:1/%2f")]);
    assert_eq!((code, err.as_str()), (Some(2), ""), "{out}");
    let (code, out, err) = doctor(&["--json"], &[("SECKILL_HTTP__BIND", "nowhere")]);
    assert_eq!((code, out.as_str(), err.lines().count()), (Some(2), "", 1), "{err}");
}

/// docs/install.md has one row for each check.
#[tokio::test(flavor = "multi_thread")]
async fn the_document_lists_every_check() {
    let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/install.md")).unwrap();
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let listed: BTreeSet<&str> = rows.filter(|name| name.contains('.')).collect();
    let look = Look::within(&Config::read(&seckill_harness::production_settings()).unwrap(), LONG).await;
    assert_eq!(listed, look.checks.keys().copied().collect());
}
