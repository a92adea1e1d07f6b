//! `seckill`: one program for everything. An error is one line on stderr and an exit code other than 0.

use std::process::ExitCode;

use clap::Parser;
use seckill::cli::{self, Cli};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(command) => command,
        Err(error) if error.use_stderr() => {
            eprintln!("seckill: {}", one_line(&error.to_string()));
            return ExitCode::from(2);
        }
        Err(help) => help.exit(),
    };
    seckill_runtime::failpoint::set_up();
    let (is_check, reports_failures) = (command.is_check(), command.reports_failures());
    seckill_telemetry::start_logs(reports_failures);
    command.run().unwrap_or_else(|error| {
        eprintln!("seckill: {}", causes(&error));
        cli::exit_code(&error, is_check)
    })
}

/// The error and its causes in one line. Most errors name their causes already.
fn causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    one_line(&text)
}

/// A usage error in one line, without the usage.
fn one_line(error: &str) -> String {
    let lines = error.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}
