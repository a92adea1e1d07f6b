//! `doctor`: says which servers and settings are unsafe for production, which guarantee that endangers, and how to change it.

use std::process::ExitCode;
use std::time::Duration;

use super::arguments::Format;
use super::print::{self, Row};
use crate::doctor::{self, Check, Verdict};
use seckill_config::Config;

#[derive(clap::Args)]
pub(super) struct DoctorArgs {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Wait at most this long for the servers' answers
    #[arg(long, value_name = "MILLISECONDS", default_value_t = doctor::LIMIT_MS,
          value_parser = clap::value_parser!(u64).range(100..=60_000))]
    timeout_ms: u64,
}

/// A row of the table shows the beginning of a finding; the advice above it shows all.
const FOUND_CHARS: usize = 100;

impl DoctorArgs {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<ExitCode> {
        let report = doctor::examine(config, Duration::from_millis(self.timeout_ms)).await;
        if self.json {
            print::json(&report)?;
        } else {
            print::lines(report.checks.iter().filter_map(advice))?;
            let row = |check: &Check| {
                let found: String = check.found.chars().take(FOUND_CHARS).collect();
                Row([
                    ("check", check.name.into()),
                    ("verdict", check.verdict.to_string().into()),
                    ("found", found.into()),
                ])
            };
            print::rows(report.checks.iter().map(row), Format::Table)?;
        }
        Ok(ExitCode::from(match report.verdict {
            Verdict::Pass | Verdict::Warn => 0,
            Verdict::Fail => 1,
            Verdict::Unknown => 2,
        }))
    }
}

fn advice(check: &Check) -> Option<String> {
    let Check { name, verdict, found, endangers, fix, .. } = check;
    let fix = fix.as_ref()?;
    Some(format!("{verdict}: {name}: {found}\n  endangers: {endangers}\n  fix: {fix}\n"))
}
