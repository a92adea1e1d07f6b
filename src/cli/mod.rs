//! The program's commands: one line a subcommand here, what they print in the files beside.

mod admin;
mod ask;
mod money;
mod outflow;
mod policies;
mod print;
mod rush;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::app::{Service, Worker, work};
use crate::config::{self, Config};
use crate::domain::order::OrderStatus;
use crate::domain::sale::{SaleStatus, Wave};
use seckill_sandbox::Sandbox;

/// A check that could not be made at all, as against one that failed: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CouldNotRun(String);

#[derive(Parser)]
#[command(name = "seckill", version, about, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    program: Program,
}

/// The service with all that belongs to it, and the bank, which needs none of its settings.
#[derive(Subcommand)]
enum Program {
    #[command(flatten)]
    Seckill(Command),
    /// Play a payment channel, for development and tests
    ChannelSandbox,
}

#[derive(Subcommand)]
enum Command {
    /// Run the HTTP service
    Serve {
        /// Run the background workers in the same process
        #[arg(long)]
        with_workers: bool,
    },
    /// Run the background workers
    Work {
        /// Only these
        #[arg(long, value_delimiter = ',')]
        only: Option<Vec<Worker>>,
    },
    /// Bring the database up to date
    Migrate,
    /// Make sample products and a sample sale, unless they are there
    Seed,
    /// Plan and steer sales
    #[command(subcommand)]
    Sale(SaleCommand),
    /// Make buyers' tokens (development mode only)
    Token(TokenArgs),
    /// Show the order table
    Orders(OrdersArgs),
    /// Play the rush against a running service
    Load(rush::LoadArgs),
    /// Prove the invariants from the data: exit 0 held, 1 broken, 2 could not run
    Audit {
        /// Only this sale
        #[arg(long)]
        sale: Option<i64>,
        /// Compare our books with the payment channels' too
        #[arg(long)]
        channel: bool,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Look after parked messages
    #[command(subcommand)]
    Outbox(OutboxCommand),
    /// Applications that may ask for permits
    #[command(subcommand)]
    App(policies::AppCommand),
    /// Show what is wrong at the moment, and what was
    Alarms {
        #[arg(long, value_enum, default_value_t)]
        format: Format,
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=100_000))]
        limit: i64,
    },
    /// Policies of flow control
    #[command(subcommand)]
    Policy(policies::PolicyCommand),
    /// Accounts of the admin console
    #[command(subcommand)]
    Admin(admin::AdminCommand),
    /// Payments, and what channels said that does not fit
    #[command(subcommand)]
    Payments(money::PaymentsCommand),
    /// Money that goes back
    #[command(subcommand)]
    Refunds(money::RefundsCommand),
    /// Queues that leave at a constant rate
    #[command(subcommand)]
    Outflow(outflow::OutflowCommand),
}

/// Who the audit log says it was.
const ACTOR: &str = "command line";

#[derive(Subcommand)]
enum SaleCommand {
    /// Create, publish and warm a sale; when it returns, every ready instance knows it
    Create(Box<CreateArgs>),
    /// Show one sale
    Show {
        id: i64,
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Show all sales, newest first
    List {
        #[arg(long, value_enum, default_value_t)]
        format: Format,
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=100_000))]
        limit: i64,
    },
    /// End a sale for good; orders that were made stay
    Close { id: i64 },
    /// Stop selling for a while
    Pause { id: i64 },
    /// Go on selling
    Resume { id: i64 },
    /// Remove a sale that nobody ever bought in
    Remove { id: i64 },
    /// Put more units up for sale
    AddStock {
        id: i64,
        #[arg(value_parser = clap::value_parser!(i32).range(1..))]
        units: i32,
    },
}

#[derive(clap::Args)]
struct CreateArgs {
    /// The product's name; it is made where it is missing
    #[arg(long)]
    product: String,
    #[arg(long)]
    price_cents: i64,
    /// Units for sale; -1 is unlimited
    #[arg(long, allow_hyphen_values = true)]
    stock: i64,
    /// Units that one buyer may have
    #[arg(long, default_value_t = 1)]
    per_user: u64,
    /// Seconds from now until it starts
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    starts_in: i64,
    /// Seconds from now until it ends
    #[arg(long, default_value_t = 3600, allow_hyphen_values = true)]
    ends_in: i64,
    /// Keep units whose money went back, instead of selling them again
    #[arg(long)]
    keep_refunded: bool,
    /// Seconds to pay in
    #[arg(long, default_value_t = 900)]
    pay_within: i64,
    /// The least level of a buyer
    #[arg(long, default_value_t = 0)]
    min_level: i64,
    /// Hold N units of the stock back until S seconds after the start; may be given several times
    #[arg(long = "wave", value_name = "S:N", value_parser = Wave::parse)]
    waves: Vec<Wave>,
}

#[derive(clap::Args)]
struct TokenArgs {
    /// The buyer whose token is printed
    #[arg(long, required_unless_present = "count", conflicts_with = "count")]
    user: Option<String>,
    #[arg(long, default_value_t = 0)]
    level: i64,
    /// Seconds that the token is good for
    #[arg(long, default_value_t = 86_400, value_parser = clap::value_parser!(i64).range(-31_536_000..=31_536_000), allow_hyphen_values = true)]
    ttl: i64,
    /// As many tokens, for PREFIX1 and on
    #[arg(long, requires = "prefix", requires = "out", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    count: Option<u32>,
    #[arg(long)]
    prefix: Option<String>,
    /// The file they are written to, a line each: user, space, token
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(clap::Args)]
struct OrdersArgs {
    #[arg(long)]
    sale: Option<i64>,
    #[arg(long, value_parser = |s: &str| OrderStatus::parse(s).ok_or("not an order's status"))]
    status: Option<OrderStatus>,
    #[arg(long)]
    user: Option<String>,
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(i64).range(1..=10_000_000))]
    limit: i64,
}

#[derive(Subcommand)]
enum OutboxCommand {
    /// Show parked messages
    List {
        #[arg(long, value_enum, default_value_t)]
        format: Format,
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=100_000))]
        limit: i64,
    },
    /// Send parked messages again
    Retry {
        /// The rows' ids; none means every parked one
        ids: Vec<i64>,
    },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    #[default]
    Table,
    Json,
    Csv,
}

impl Cli {
    /// The exit code of a failure: an audit that could not be made has not found anything broken.
    pub fn failure(&self) -> ExitCode {
        ExitCode::from(if matches!(self.program, Program::Seckill(Command::Audit { .. })) { 2 } else { 1 })
    }

    pub fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build();
        match self.program {
            Program::Seckill(command) => {
                let config = Config::load()?;
                runtime()?.block_on(command.run(config))
            }
            Program::ChannelSandbox => {
                let config = config::sandbox_settings(&std::env::vars().collect())?;
                runtime()?.block_on(channel_sandbox(config))
            }
        }
    }
}

impl Command {
    async fn run(self, config: Config) -> anyhow::Result<ExitCode> {
        match self {
            Self::Serve { with_workers } => serve(config, with_workers).await?,
            Self::Work { only } => work(config, only, terminated()?).await?,
            Self::Migrate => ask::migrate(&config).await?,
            Self::Seed => ask::seed(&config).await?,
            Self::Sale(SaleCommand::Create(args)) => ask::create_sale(&config, *args).await?,
            Self::Sale(SaleCommand::Show { id, format }) => ask::show_sale(&config, id, format).await?,
            Self::Sale(SaleCommand::List { format, limit }) => ask::list_sales(&config, format, limit).await?,
            Self::Sale(SaleCommand::Close { id }) => ask::steer(&config, id, SaleStatus::Closed).await?,
            Self::Sale(SaleCommand::Pause { id }) => ask::steer(&config, id, SaleStatus::Paused).await?,
            Self::Sale(SaleCommand::Resume { id }) => ask::steer(&config, id, SaleStatus::Open).await?,
            Self::Sale(SaleCommand::Remove { id }) => ask::remove_sale(&config, id).await?,
            Self::Sale(SaleCommand::AddStock { id, units }) => ask::add_stock(&config, id, units).await?,
            Self::Token(args) => rush::tokens(&config, args).await?,
            Self::Orders(args) => ask::orders(&config, args).await?,
            Self::Load(args) => return rush::load(&config, args).await,
            Self::Audit { sale, channel, json } => return ask::audit(&config, sale, channel, json).await,
            Self::Outbox(OutboxCommand::List { format, limit }) => ask::parked(&config, format, limit).await?,
            Self::Outbox(OutboxCommand::Retry { ids }) => ask::retry(&config, &ids).await?,
            Self::App(policies::AppCommand::Create { name }) => policies::create_app(&config, &name).await?,
            Self::Alarms { format, limit } => ask::alarms(&config, format, limit).await?,
            Self::Policy(command) => policies::run(&config, command).await?,
            Self::Admin(command) => command.run(&config).await?,
            Self::Payments(command) => command.run(&config).await?,
            Self::Refunds(command) => command.run(&config).await?,
            Self::Outflow(command) => command.run(&config).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn serve(config: Config, with_workers: bool) -> anyhow::Result<()> {
    let stop = terminated()?;
    let service = Service::bind(config, with_workers).await?;
    let stopper = service.stopper();
    let stopping = tokio::spawn(async move {
        stop.cancelled().await;
        tracing::info!("stopping: answers under way are finished first");
        stopper.stop().await;
    });
    service.run().await?;
    stopping.abort();
    Ok(())
}

async fn channel_sandbox(config: seckill_sandbox::Settings) -> anyhow::Result<ExitCode> {
    let stop = terminated()?;
    let sandbox = Sandbox::bind(&config)?;
    let stopper = sandbox.stopper();
    let stopping = tokio::spawn(async move {
        stop.cancelled().await;
        stopper.stop().await;
    });
    sandbox.run().await?;
    stopping.abort();
    Ok(ExitCode::SUCCESS)
}

/// Cancelled by SIGTERM or SIGINT.
fn terminated() -> std::io::Result<CancellationToken> {
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(token)
}
