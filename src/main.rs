//! `seckill`: one program for everything. An error is one line on stderr and an exit code other than 0.

use std::process::ExitCode;

use clap::Parser;
use seckill::cli::Cli;

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
    let (failure, reports_failures) = (command.failure(), command.reports_failures());
    seckill_telemetry::start_logs(reports_failures);
    command.run().unwrap_or_else(|error| {
        eprintln!("seckill: {error:#}");
        if error.is::<seckill::cli::CouldNotRun>() { ExitCode::from(2) } else { failure }
    })
}

/// A usage error in one line, without the usage.
fn one_line(error: &str) -> String {
    let lines = error.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}
