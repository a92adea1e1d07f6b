//! `seckill`: one program for everything. An error is one line on stderr and an exit code other than 0.

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let command = seckill::cli::Cli::parse();
    seckill::failpoint::set_up();
    let failure = command.failure();
    let run = || {
        let _telemetry = seckill::telemetry::start()?;
        command.run()
    };
    run().unwrap_or_else(|error| {
        eprintln!("seckill: {error:#}");
        if error.is::<seckill::cli::CouldNotRun>() { ExitCode::from(2) } else { failure }
    })
}
