//! Arguments that several commands share.

use clap::ValueEnum;
use uuid::Uuid;

use seckill_domain::account::AccountName;
use seckill_domain::ids::{Invalid, OrderId, SaleId, UserId};
use seckill_domain::policy::Name;

/// How rows are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A table for people
    #[default]
    Table,
    /// One JSON array
    Json,
    /// Comma-separated values, with a header line
    Csv,
}

#[derive(clap::Args)]
pub(super) struct FormatArg {
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

/// What every command that lists rows takes.
#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
    /// Show at most this many rows; by default all of them, and 10000 in a table. If there are more, stderr says so, and the exit code
    /// is 3
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    limit: Option<i64>,
}

impl ListArgs {
    /// Nobody reads a longer table.
    const TABLE_MAX: i64 = 10_000;

    pub(super) fn rows_max(&self) -> Option<i64> {
        self.limit.or((self.format == Format::Table).then_some(Self::TABLE_MAX))
    }

    /// One row more, which shows that there are more.
    pub(super) fn read_max(&self) -> i64 {
        self.rows_max().map_or(i64::MAX, |limit| limit.saturating_add(1))
    }
}

/// The sale that a command is about.
#[derive(clap::Args)]
pub(super) struct SaleArg {
    /// The sale's id, as `seckill sale list` shows it
    #[arg(value_name = "SALE_ID", value_parser = SaleId::parse, allow_negative_numbers = true)]
    pub(super) id: SaleId,
}

/// An option that names a sale.
#[derive(clap::Args)]
pub(super) struct SaleOption {
    /// Only this sale
    #[arg(long, value_name = "SALE_ID", value_parser = SaleId::parse, allow_negative_numbers = true)]
    pub(super) sale: Option<SaleId>,
}

pub(super) fn order_id(text: &str) -> Result<OrderId, uuid::Error> {
    Uuid::try_parse(text).map(OrderId)
}

pub(super) fn user(text: &str) -> Result<UserId, Invalid> {
    UserId::parse(text)
}

pub(super) fn account(text: &str) -> Result<AccountName, Invalid> {
    AccountName::parse(text, "account name")
}

pub(super) fn app(text: &str) -> Result<Name, Invalid> {
    Name::parse(text, "application")
}
