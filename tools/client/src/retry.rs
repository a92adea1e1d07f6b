//! How long a purchase is retried, and what each answer says about earlier attempts. Pure: time and randomness are parameters.

use std::time::{Duration, Instant};

use seckill_webhook::backoff_ms;

use crate::error::{Code, Error};

/// The pauses between attempts without a `Retry-After`: they double from the first to the second value.
const PAUSE_MS: u64 = 300;
const PAUSE_MAX_MS: u64 = 3_000;
/// A `Retry-After` pause is lengthened by up to this share, so that callers that were refused together return at different times.
const SPREAD: f64 = 0.25;

/// How long and how often a purchase is tried before its result is left unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryTerms {
    /// Requests, the first one included. 10 by default; 0 counts as 1.
    pub attempts: u32,
    /// No attempt begins later than this after the first. 30 s by default.
    pub within: Duration,
    /// With a longer `Retry-After` the purchase ends at once instead of waiting. 10 s by default.
    pub retry_after_max: Duration,
}

impl Default for RetryTerms {
    fn default() -> Self {
        Self { attempts: 10, within: Duration::from_secs(30), retry_after_max: Duration::from_secs(10) }
    }
}

/// What an answer says about the purchase, by the order in which the service checks (docs/protocol.md, "The order of answers").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// The service looked for this Idempotency-Key's ticket: no attempt has bought.
    NotBought,
    /// The service refused this request before it looked for a ticket. Earlier attempts may have bought.
    Refused { may_pass: bool },
    /// This request may have bought.
    Unknown,
}

/// What to do after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Pause(Duration),
    /// The error is the purchase's definite result.
    Definite,
    /// Give up: it is unknown whether it was bought.
    Undecided,
}

/// The attempts of one purchase.
#[derive(Debug)]
pub(crate) struct Attempts {
    terms: RetryTerms,
    began: Instant,
    pub made: u32,
    /// Whether any attempt may have bought.
    may_have_bought: bool,
}

impl Attempts {
    pub(crate) fn new(terms: RetryTerms, began: Instant) -> Self {
        Self { terms, began, made: 0, may_have_bought: false }
    }

    /// Counts an attempt that failed at `now`. `unit` is a random number in 0..1.
    pub(crate) fn failed(&mut self, error: &Error, now: Instant, unit: f64) -> Next {
        self.made = self.made.saturating_add(1);
        let meaning = meaning(error);
        self.may_have_bought |= meaning == Meaning::Unknown;
        let give_up = if self.may_have_bought { Next::Undecided } else { Next::Definite };
        match meaning {
            Meaning::NotBought => Next::Definite,
            Meaning::Refused { may_pass: false } => give_up,
            Meaning::Refused { may_pass: true } | Meaning::Unknown => {
                let pause = self.pause(error.retry_after(), unit);
                let in_time = pause.is_some_and(|pause| now + pause <= self.began + self.terms.within);
                pause.filter(|_| in_time && self.made < self.terms.attempts).map_or(give_up, Next::Pause)
            }
        }
    }

    /// The pause before the next attempt; `None` if the service asks for a longer one than allowed.
    fn pause(&self, retry_after: Option<Duration>, unit: f64) -> Option<Duration> {
        match retry_after {
            None => Some(Duration::from_millis(backoff_ms(self.made, PAUSE_MS, PAUSE_MAX_MS, unit))),
            Some(wait) if wait > self.terms.retry_after_max => None,
            Some(wait) => Some(wait.mul_f64(1.0 + SPREAD * unit.clamp(0.0, 1.0))),
        }
    }
}

fn meaning(error: &Error) -> Meaning {
    let problem = match error {
        Error::Problem(problem) => problem,
        Error::Connect(_) => return Meaning::Refused { may_pass: true },
        Error::Invalid { .. } => return Meaning::Refused { may_pass: false },
        Error::TimeOut(_) | Error::Lost(_) | Error::Unreadable(_) | Error::Undecided { .. } => return Meaning::Unknown,
    };
    match problem.code {
        Code::NotStarted
        | Code::Ended
        | Code::WrongKey
        | Code::LevelTooLow
        | Code::NotAllowed
        | Code::PassInvalid
        | Code::SoldOut
        | Code::AlreadyPurchased
        | Code::IdempotencyMismatch => Meaning::NotBought,
        _ if problem.status >= 500 => Meaning::Unknown,
        _ => Meaning::Refused { may_pass: matches!(problem.status, 408 | 429) },
    }
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;

    use super::*;
    use crate::error::Problem;

    fn problem(status: u16, code: &str, retry_after_s: Option<u64>) -> Error {
        let body = format!(r#"{{"code":"{code}"}}"#);
        let status = StatusCode::from_u16(status).unwrap();
        let retry_after = retry_after_s.map(Duration::from_secs);
        Error::Problem(Problem::read(status, retry_after, body.as_bytes()).into())
    }

    fn attempts() -> (Attempts, Instant) {
        let now = Instant::now();
        (Attempts::new(RetryTerms::default(), now), now)
    }

    #[test]
    fn a_refusal_behind_the_ticket_is_definite_whatever_came_before() {
        for (status, code) in
            [(409, "sold-out"), (409, "already-purchased"), (403, "ended"), (422, "idempotency-mismatch")]
        {
            let (mut attempts, now) = attempts();
            assert!(matches!(attempts.failed(&Error::Lost("x".into()), now, 0.0), Next::Pause(_)));
            assert_eq!(attempts.failed(&problem(status, code, None), now, 0.0), Next::Definite, "{code}");
        }
    }

    /// A token that expires between two attempts hides the result of the first one.
    #[test]
    fn a_refusal_before_the_ticket_leaves_an_earlier_attempt_open() {
        let expired = problem(401, "unauthenticated", None);
        let (mut first, now) = attempts();
        assert_eq!(first.failed(&expired, now, 0.0), Next::Definite);
        let (mut second, now) = attempts();
        assert!(matches!(second.failed(&Error::TimeOut(Duration::ZERO), now, 0.0), Next::Pause(_)));
        assert_eq!(second.failed(&expired, now, 0.0), Next::Undecided);
    }

    #[test]
    fn retry_after_is_honoured_and_spread_but_not_for_ever() {
        let (mut attempts, now) = attempts();
        let busy = problem(503, "temporarily-unavailable", Some(2));
        assert_eq!(attempts.failed(&busy, now, 0.0), Next::Pause(Duration::from_secs(2)));
        assert_eq!(attempts.failed(&busy, now, 1.0), Next::Pause(Duration::from_millis(2_500)));
        assert_eq!(attempts.failed(&problem(429, "quota-exceeded", Some(60)), now, 0.0), Next::Undecided);
        let (mut attempts, now) = self::attempts();
        assert_eq!(attempts.failed(&problem(429, "quota-exceeded", Some(60)), now, 0.0), Next::Definite);
    }

    #[test]
    fn attempts_and_time_are_bounded() {
        let (mut attempts, now) = attempts();
        let lost = Error::Lost("x".into());
        let pauses = (0..100).take_while(|_| matches!(attempts.failed(&lost, now, 0.5), Next::Pause(_))).count();
        assert_eq!((pauses, attempts.made), (9, 10));
        let (mut attempts, now) = self::attempts();
        assert_eq!(attempts.failed(&lost, now + Duration::from_secs(30), 0.0), Next::Undecided, "the time is over");
        let refused = Error::Connect("refused".into());
        let (mut attempts, now) = self::attempts();
        assert_eq!(attempts.failed(&refused, now + Duration::from_secs(30), 0.0), Next::Definite, "nothing was sent");
    }
}
