//! `seckill doctor` checks the configured servers and settings. It reports unsafe settings, the guarantee in danger,
//! and the change to make. It only reads.
//!
//! The servers' crates ask the questions. The checks here are pure functions of the answers, one file for each server. All questions run at
//! the same time with one deadline, so a server that is away delays no other check. docs/install.md lists the checks.

mod postgres_checks;
mod rabbitmq_checks;
mod redis_checks;
mod redis_memory;
mod running_instance;
mod settings_checks;
mod versions;

use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use seckill_config::Config;

/// The default time limit of a check. All checks run at the same time, so this is also the limit for all.
pub const LIMIT_MS: u64 = 2_000;

/// The result of a check, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Verdict {
    Pass,
    /// A risk that depends on facts that the doctor cannot see, or a guarantee that holds only in part.
    Warn,
    /// The check was not possible.
    Unknown,
    /// A guarantee does not hold.
    Fail,
}

#[derive(Debug, Clone, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// The guarantee that depends on it.
    pub endangers: &'static str,
    pub fix: Option<String>,
    /// Whether the check failed to look: a server was away or refused the question.
    #[serde(skip)]
    could_not_look: bool,
}

#[derive(Debug, Serialize)]
pub struct Report {
    /// `fail` if any check failed; otherwise `unknown` if any could not look; otherwise the worst.
    pub verdict: Verdict,
    pub checks: Vec<Check>,
}

pub async fn examine(config: &Config, limit: Duration) -> Report {
    let deadline = Instant::now() + limit;
    // Boxed: together they are too large for a thread's stack.
    let (redis, postgres, rabbitmq, routes, unreadable_clients, keys) = tokio::join!(
        Box::pin(redis_checks::ask(config, deadline, limit)),
        Box::pin(postgres_checks::ask(config, deadline, limit)),
        Box::pin(rabbitmq_checks::ask(config, deadline, limit)),
        Box::pin(settings_checks::locate(config, deadline)),
        Box::pin(running_instance::unreadable_clients(config.http.bind, deadline)),
        Box::pin(settings_checks::issuer_keys(config, deadline)),
    );
    let mut checks = settings_checks::checks(config, &routes, unreadable_clients, &keys);
    checks.extend(redis_checks::checks(&redis, &postgres));
    checks.extend(postgres_checks::checks(config, &postgres));
    checks.extend(rabbitmq_checks::checks(&rabbitmq));
    let looked = checks.iter().filter(|check| check.verdict != Verdict::Unknown || check.could_not_look);
    let verdict = looked.map(|check| check.verdict).max().unwrap_or(Verdict::Pass);
    Report { verdict, checks }
}

type Answer<T> = Result<T, String>;

/// The name of a check, and the guarantee that it endangers.
struct Topic(&'static str, &'static str);

struct Finding {
    verdict: Verdict,
    found: String,
    fix: Option<String>,
    could_not_look: bool,
}

fn not_shown(name: &str) -> Finding {
    Finding::could_not_look(format!("INFO does not show {name}"), format!("look at {name} by hand"))
}

impl Finding {
    fn pass(found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Pass, found: found.into(), fix: None, could_not_look: false }
    }

    fn warn(found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, found: found.into(), fix: Some(fix.into()), could_not_look: false }
    }

    fn fail(found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, found: found.into(), fix: Some(fix.into()), could_not_look: false }
    }

    fn could_not_look(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict: Verdict::Unknown, found: why.into(), fix: Some(fix.into()), could_not_look: true }
    }

    /// The check has no means, and the settings ask for none. It does not change the verdict of the report.
    fn not_asked(why: impl Into<String>, by_hand: impl Into<String>) -> Self {
        Self { could_not_look: false, ..Self::could_not_look(why, by_hand) }
    }
}

impl Topic {
    fn check(&self, finding: Finding) -> Check {
        let Finding { verdict, found, fix, could_not_look } = finding;
        Check { name: self.0, verdict, found, endangers: self.1, fix, could_not_look }
    }

    /// Decides by an answer. Without an answer the result is unknown.
    fn judge<T>(&self, answer: &Answer<T>, decide: impl FnOnce(&T) -> Finding) -> Check {
        let again = "start the server, or correct its address or our rights, and run the doctor again";
        self.check(match answer {
            Ok(answer) => decide(answer),
            Err(why) => Finding::could_not_look(why, again),
        })
    }

    /// Decides by two answers.
    fn judge_both<T, U>(&self, answers: (&Answer<T>, &Answer<U>), decide: impl FnOnce(&T, &U) -> Finding) -> Check {
        let both = match answers {
            (Ok(one), Ok(other)) => Ok((one, other)),
            (Err(why), _) | (_, Err(why)) => Err(why.clone()),
        };
        self.judge(&both, |(one, other)| decide(one, other))
    }
}

async fn in_time<T, E: Display>(deadline: Instant, question: impl Future<Output = Result<T, E>>) -> Answer<T> {
    match timeout_at(deadline, question).await {
        Ok(answer) => answer.map_err(|error| one_line(&error)),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

async fn of<S, T, E: Display>(
    deadline: Instant,
    server: &Answer<S>,
    question: impl AsyncFnOnce(&S) -> Result<T, E>,
) -> Answer<T> {
    match server {
        Ok(server) => in_time(deadline, question(server)).await,
        Err(why) => Err(why.clone()),
    }
}

/// An error as one line of bounded length: servers may send long texts.
fn one_line(error: &impl Display) -> String {
    let words: Vec<String> = error.to_string().split_whitespace().map(str::to_owned).collect();
    words.join(" ").chars().take(300).collect()
}

fn some_of<T: Display>(names: &[T]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = names.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = if names.len() > SHOWN { format!(" and {} more", names.len() - SHOWN) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}
