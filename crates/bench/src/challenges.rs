//! Challenges: a rush of winners beside ten thousand requests a second for challenges. What the pool does not have is a 503; it
//! must not be a slow purchase.
//!
//! The same ten thousand a second for a sale that asks for no challenge, which are refused at once, show what any such crowd
//! costs on the same processors.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::time::sleep;

use crate::arrivals::{self, Crowd, Seen};
use crate::crowds::{Rush, rush, settled};
use crate::processes;
use crate::series::{Series, thousands};
use crate::service::{Sale, Service};
use crate::settle;
use crate::wrk::Buyers;

/// Requests a second for challenges.
const RATE: u64 = 10_000;
/// Arrivals a second of the rush.
const BUYING: u64 = 1_000;
/// The rush begins this long after the others.
const LATER: Duration = Duration::from_secs(1);

/// What a crowd beside the rush asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Beside {
    Nobody,
    NoChallenge,
    Picture,
    Slider,
    Work,
}

impl Beside {
    const ALL: [Self; 5] = [Self::Nobody, Self::NoChallenge, Self::Picture, Self::Slider, Self::Work];

    /// The value of `--captcha` of the sale that is asked.
    fn captcha(self) -> Option<&'static str> {
        match self {
            Self::Nobody => None,
            Self::NoChallenge => Some("none"),
            Self::Picture => Some("image"),
            Self::Slider => Some("slider"),
            Self::Work => Some("work"),
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::NoChallenge => "requests that are refused: the sale asks for none",
            Self::Picture => "pictures",
            Self::Slider => "sliders",
            Self::Work => "work",
        }
    }
}

#[derive(Default)]
pub struct Results {
    rounds: Vec<(Beside, Rush, Option<Seen>)>,
}

/// Buyers that one crowd needs, each of whom asks once.
pub fn buyers(seconds: u64) -> u64 {
    RATE * crowd_seconds(seconds)
}

/// The crowd comes before the rush begins and goes after it has ended.
fn crowd_seconds(seconds: u64) -> u64 {
    seconds + 2 * LATER.as_secs()
}

pub async fn measure(
    service: &Service,
    buyers: &Buyers,
    sql: &PgPool,
    logs: &std::path::Path,
    rounds: u64,
    seconds: u64,
) -> anyhow::Result<Results> {
    let last = std::thread::available_parallelism()?.get() - 1;
    let mut results = Results::default();
    for round in 1..=rounds {
        for beside in Beside::ALL {
            eprintln!("round {round} of {rounds}: winners beside {}", beside.title());
            let (rate, length, count) = (BUYING.to_string(), seconds.to_string(), (BUYING * seconds).to_string());
            let words = ["--rate", &rate, "--seconds", &length, "--buyers", &count, "--shape", "even"];
            let sale = service.sale((BUYING * seconds).cast_signed()).await?;
            let buying = async {
                sleep(LATER).await;
                rush(service, &sale, &words).await
            };
            let asking = async {
                let Some(captcha) = beside.captcha() else { return Ok(None) };
                let asked = service.sale_with(1, &["--captcha", captcha]).await?;
                let path = format!("/api/v1/sales/{}/challenges", asked.id);
                let asked = Sale { path, body: "{}".to_owned(), ..asked };
                let count = (RATE * crowd_seconds(seconds)) as usize;
                let crowd = Crowd { buyers, count, rate: RATE as f64 };
                arrivals::play(last, service.process.address, &asked, &crowd).await.map(Some)
            };
            let (bought, seen) = tokio::try_join!(buying, asking)?;
            results.rounds.push((beside, bought, seen));
        }
    }
    let _work = processes::work(&logs.join("work.log"), None)?;
    settled(sql).await?;
    settle::audit(&[]).await?;
    Ok(results)
}

impl Results {
    pub fn markdown(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "| {} winners a second, beside {} requests a second for challenges: | p50 ms | p99 ms | 503 or no answer | those \
             were answered |\n|---|---|---|---|---|",
            thousands(BUYING as f64),
            thousands(RATE as f64)
        );
        for beside in Beside::ALL {
            let of = || self.rounds.iter().filter(|(of, ..)| *of == beside);
            let ms = |figure: fn(&Rush) -> f64| {
                Series::of(of().map(|(_, rush, _)| figure(rush))).with_range(|ms| format!("{ms:.1}"))
            };
            let unavailable: u64 = of().map(|(_, rush, _)| rush.unavailable).sum();
            let mut answers = BTreeMap::<u16, u64>::new();
            for (status, n) in of().filter_map(|(.., seen)| seen.as_ref()).flat_map(|seen| &seen.statuses) {
                *answers.entry(*status).or_default() += n;
            }
            let lost: u64 = of().filter_map(|(.., seen)| seen.as_ref()).map(|seen| seen.lost).sum();
            let mut answered: Vec<String> =
                answers.iter().map(|(status, n)| format!("{status}: {}", thousands(*n as f64))).collect();
            if lost > 0 {
                answered.push(format!("lost: {lost}"));
            }
            let (p50, p99) = (ms(|rush| rush.p50_ms), ms(|rush| rush.p99_ms));
            let _ = writeln!(text, "| {} | {p50} | {p99} | {unavailable} | {} |", beside.title(), answered.join(", "));
        }
        text.push('\n');
    }

    pub fn json(&self) -> Value {
        let rounds = self.rounds.iter().map(|(beside, rush, seen)| {
            let answers = seen.as_ref().map(|seen| json!({ "statuses": seen.statuses, "lost": seen.lost }));
            json!({ "beside": beside.title(), "rush": rush.json(), "answers": answers })
        });
        json!(rounds.collect::<Vec<_>>())
    }
}
