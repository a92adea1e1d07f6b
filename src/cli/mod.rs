//! The program's commands: one file for each subcommand, with its arguments, its work and its output.
#![warn(clippy::print_stdout)]

mod admin;
mod alarms;
mod apps;
mod arguments;
mod audit;
mod buyer;
mod database;
mod doctor;
mod load;
mod order;
mod orders;
mod outbox;
mod outflow;
mod payments;
mod policies;
mod print;
mod product;
mod publish;
mod sales;
mod serve;
mod tokens;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use seckill_config::{self as config, Config};
use seckill_postgres as ledger;
use seckill_runtime::low_priority;
use seckill_telemetry::spans::{self, SpanExport, TraceSettings};

/// A check could not be made at all, as opposed to a check that failed. The exit code is 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CouldNotRun(String);

/// A list has more rows than were printed. The exit code is 3.
#[derive(Debug, thiserror::Error)]
#[error("cut at {0} rows; more with --limit")]
struct CutList(i64);

#[derive(Parser)]
#[command(
    name = "seckill",
    version,
    about,
    propagate_version = true,
    after_help = "Settings come from environment variables, for example SECKILL_HTTP__BIND; config.default.toml lists all \
                  of them.\nTables, JSON and CSV go to stdout, logs to stderr.\nExit codes: 0 done, 1 failed, 2 wrong arguments, 3 a list was cut \
                  at --limit rows; `audit` and `doctor`\nsay 1 for a check that failed, and 2 for one that could not run."
)]
pub struct Cli {
    #[command(subcommand)]
    program: Program,
}

/// The commands of the service, and the sandbox bank, which needs none of the service's settings.
#[derive(Subcommand)]
enum Program {
    #[command(flatten)]
    Service(Command),
    /// Run a payment channel that plays the bank, for development and tests
    ChannelSandbox,
}

#[derive(Subcommand)]
enum Command {
    /// Run the HTTP service
    Serve(serve::ServeArgs),
    /// Run the background workers
    Work(serve::WorkArgs),
    /// Create the database's tables, or bring them up to date
    Migrate,
    /// Create sample products and a sample sale, unless they exist
    Seed,
    /// Create, show and change sales
    #[command(subcommand)]
    Sale(sales::SaleCommand),
    /// Create and change products
    #[command(subcommand)]
    Product(product::ProductCommand),
    /// Write the pages of all sales into a folder, as files for a web server, an object store or a CDN
    Publish(publish::PublishArgs),
    /// Issue buyers' tokens (development mode only)
    Token(tokens::TokenArgs),
    /// Erase a buyer on request
    #[command(subcommand)]
    Buyer(buyer::BuyerCommand),
    /// Show orders, newest first
    Orders(orders::OrdersArgs),
    /// Show one order
    #[command(subcommand)]
    Order(order::OrderCommand),
    /// Send a rush of buyers to a running service and report the answers
    Load(load::LoadArgs),
    /// Check sales for broken invariants: exit code 0 if all hold, 1 if one is broken, 2 if the check could not run
    Audit(audit::AuditArgs),
    /// Check whether the servers and settings are safe in production: exit code 0 if they are, 1 if not, 2 if the
    /// look failed
    Doctor(doctor::DoctorArgs),
    /// Show and retry parked messages
    #[command(subcommand)]
    Outbox(outbox::OutboxCommand),
    /// Create and show applications, which may ask for permits, and replace their tokens
    #[command(subcommand)]
    App(apps::AppCommand),
    /// Show alarms, newest first, raised and cleared
    Alarms(arguments::ListArgs),
    /// Show and change policies, which limit how often an application may do something
    #[command(subcommand)]
    Policy(policies::PolicyCommand),
    /// Create, show and disable accounts of the admin console, and end their sessions
    #[command(subcommand)]
    Admin(admin::AdminCommand),
    /// Show payments, and callbacks that conflict with our data
    #[command(subcommand)]
    Payments(payments::PaymentsCommand),
    /// Show, create and retry refunds
    #[command(subcommand)]
    Refunds(payments::RefundsCommand),
    /// Show and change outflows: queues whose items are sent at a constant rate
    #[command(subcommand)]
    Outflow(outflow::OutflowCommand),
}

const ACTOR: &str = "command line";

pub fn exit_code(error: &anyhow::Error, of_check: bool) -> ExitCode {
    match error {
        _ if error.is::<CutList>() => ExitCode::from(3),
        _ if of_check || error.is::<CouldNotRun>() => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

impl Cli {
    /// Whether the command is a check. One that could not run has found nothing broken, so its exit code is not 1.
    pub fn is_check(&self) -> bool {
        matches!(self.program, Program::Service(Command::Audit(_) | Command::Doctor(_)))
    }

    /// Whether the output of the command says which servers failed, so that their clients need not log it, too.
    pub fn reports_failures(&self) -> bool {
        matches!(self.program, Program::Service(Command::Doctor(_)))
    }

    pub fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let is_bounded = matches!(self.program, Program::Service(Command::Doctor(_)));
        match self.program {
            Program::Service(command) => {
                let config = Config::read(&std::env::vars().collect())?;
                // Ends after the runtime, with all spans that were begun in it.
                let _traces = command.start_traces(&config.traces)?;
                if matches!(command, Command::Work(_)) {
                    low_priority::give_way(); // before the runtime starts its threads
                }
                let runtime = runtime()?;
                let database = config.database.clone();
                let code = runtime.block_on(async {
                    match command.run(config).await {
                        Err(error) if ledger::lacks_connection(error.as_ref()) => {
                            Err(ledger::connection_problem(&database).await.map_or(error, Into::into))
                        }
                        done => done,
                    }
                });
                if is_bounded {
                    // A name server that does not answer would hold up the end of the process.
                    runtime.shutdown_background();
                }
                code
            }
            Program::ChannelSandbox => {
                let settings = config::sandbox_settings(&std::env::vars().collect())?;
                runtime()?.block_on(serve::channel_sandbox(settings))?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

impl Command {
    /// Only processes that run on trace anything.
    fn start_traces(&self, traces: &config::Traces) -> anyhow::Result<Option<SpanExport>> {
        let service = match self {
            Self::Serve(_) => "seckill-serve",
            Self::Work(_) => "seckill-work",
            _ => return Ok(None),
        };
        let config::Traces { endpoint, per_second_max, sample_one_in } = traces;
        let terms = TraceSettings { service, endpoint, per_second_max: *per_second_max, sample_one_in: *sample_one_in };
        spans::start(terms).map(Some)
    }

    async fn run(self, mut config: Config) -> anyhow::Result<ExitCode> {
        config.database.url = ledger::with_primary_first(&config.database).await;
        match self {
            Self::Serve(args) => args.run(config).await?,
            Self::Work(args) => args.run(config).await?,
            Self::Migrate => database::migrate(&config).await?,
            Self::Seed => database::seed(&config).await?,
            Self::Sale(command) => command.run(&config).await?,
            Self::Product(command) => command.run(&config).await?,
            Self::Publish(args) => args.run(&config).await?,
            Self::Token(args) => args.run(&config).await?,
            Self::Buyer(command) => command.run(&config).await?,
            Self::Orders(args) => args.run(&config).await?,
            Self::Order(command) => command.run(&config).await?,
            Self::Load(args) => return args.run(&config).await,
            Self::Audit(args) => return args.run(&config).await,
            Self::Doctor(args) => return args.run(&config).await,
            Self::Outbox(command) => command.run(&config).await?,
            Self::App(command) => command.run(&config).await?,
            Self::Alarms(args) => alarms::list(&config, &args).await?,
            Self::Policy(command) => command.run(&config).await?,
            Self::Admin(command) => command.run(&config).await?,
            Self::Payments(command) => command.run(&config).await?,
            Self::Refunds(command) => command.run(&config).await?,
            Self::Outflow(command) => command.run(&config).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_and_option_has_a_help_text() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{} has no help text", command.get_name());
            for argument in command.get_arguments().filter(|argument| !argument.is_global_set()) {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        let mut command = Cli::command();
        command.build();
        command.get_subcommands().filter(|command| command.get_name() != "help").for_each(check);
    }

    #[test]
    fn ids_are_checked_where_they_are_typed() {
        let order = "0197b2f0-0000-7000-8000-000000000001";
        for good in [&["sale", "show", "7"][..], &["orders", "--sale", "7"], &["refunds", "create", order]] {
            assert!(Cli::try_parse_from([&["seckill"], good].concat()).is_ok(), "{good:?}");
        }
        for wrong in ["0", "-1", "abc", "9223372036854775808"] {
            for command in [
                &["sale", "show", wrong][..],
                &["sale", "close", wrong],
                &["orders", "--sale", wrong],
                &["audit", "--sale", wrong],
                &["load", "--sale", wrong],
                &["outbox", "retry", wrong],
                &["payments", "settle", wrong],
                &["refunds", "create", wrong],
                &["order", "show", wrong],
            ] {
                let error = Cli::try_parse_from([&["seckill"], command].concat()).err().map(|e| e.to_string());
                assert!(error.is_some_and(|error| error.contains(wrong)), "{command:?}");
            }
        }
        let error = Cli::try_parse_from(["seckill", "sale", "show", "-1"]).err().map(|e| e.to_string());
        assert!(error.is_some_and(|error| error.contains("must be a positive whole number")));
    }
}
