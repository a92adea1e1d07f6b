//! `admin`: accounts of the admin console.

use std::io::{BufRead, IsTerminal, Read, stdin};

use anyhow::{Context, bail};
use clap::Subcommand;

use super::arguments::{FormatArg, account};
use super::print::Row;
use super::{ACTOR, print};
use crate::app::stores;
use seckill_backoffice::admin::password::hash_new;
use seckill_config::Config;
use seckill_domain::account::{AccountName, AccountRole, NewPassword};
use seckill_postgres::Accounts;
use seckill_postgres::accounts::{AccountChange, AccountOutcome, ListedAccount};

#[derive(Subcommand)]
pub(super) enum AdminCommand {
    /// Create an account; the password is prompted for, or read from stdin if that is not a terminal
    Create {
        /// Name of the account, used to sign in
        #[arg(long, value_parser = account)]
        name: AccountName,
        /// Role: admin (may do everything), manager (runs sales, changes granted policies) or viewer (sees sales and granted policies)
        #[arg(long, value_parser = AccountRole::parse)]
        role: AccountRole,
    },
    /// Show accounts
    List(FormatArg),
    /// Change an account's role, which counts from its next request on; the last admin who can sign in stays one
    Role {
        /// Name of the account
        #[arg(value_parser = account)]
        name: AccountName,
        /// The new role: admin, manager or viewer
        #[arg(value_parser = AccountRole::parse)]
        role: AccountRole,
    },
    /// Change an account's password, which ends its sessions; the password is read as by `create`
    Password(AccountArg),
    /// Disable an account: it cannot sign in, and its sessions end at once
    Disable(AccountArg),
    /// Enable a disabled account again
    Enable(AccountArg),
    /// Sign an account out everywhere: all its sessions end at once
    SignOut(AccountArg),
}

/// The account that a command is about.
#[derive(clap::Args)]
pub(super) struct AccountArg {
    /// Name of the account
    #[arg(long, value_parser = account)]
    name: AccountName,
}

impl AdminCommand {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let accounts = stores(config)?.ledger.accounts;
        match self {
            Self::Create { name, role } => {
                let hash = hash_new(NewPassword::parse(read_password()?, &name)?)?;
                if !accounts.create_account(&name, role, &hash, ACTOR).await? {
                    bail!("account {name} already exists");
                }
                tracing::info!(%name, role = role.into_str(), "account created");
            }
            Self::List(FormatArg { format }) => {
                let accounts = accounts.accounts(config.admin.idle_ms.cast_signed()).await?;
                let row = |of: ListedAccount| {
                    Row([
                        ("name", of.name.into()),
                        ("role", of.role.into()),
                        ("status", if of.disabled { "disabled" } else { "enabled" }.into()),
                        ("sessions", of.sessions.into()),
                        ("created_by", of.created_by.into()),
                        ("created_at", print::time(of.created_at.timestamp_millis()).into()),
                    ])
                };
                return print::rows(accounts.into_iter().map(row), format);
            }
            Self::Role { name, role } => {
                let change = AccountChange { role: Some(role), ..Default::default() };
                match accounts.change_account(&name, &change, true, ACTOR).await? {
                    AccountOutcome::Changed => tracing::info!(%name, role = role.into_str(), "role changed"),
                    AccountOutcome::Unknown => check_found(&name, false)?,
                    AccountOutcome::LastAdmin => {
                        bail!("{name} is the last admin who can sign in: make another account an admin first")
                    }
                }
            }
            Self::Password(AccountArg { name }) => {
                let hash = hash_new(NewPassword::parse(read_password()?, &name)?)?;
                change(&accounts, &name, AccountChange { password_hash: Some(&hash), ..Default::default() }).await?;
                tracing::info!(%name, "password changed, and all sessions ended");
            }
            Self::Disable(AccountArg { name }) => {
                change(&accounts, &name, AccountChange { disabled: Some(true), ..Default::default() }).await?;
                tracing::info!(%name, "account disabled, and all sessions ended");
            }
            Self::Enable(AccountArg { name }) => {
                change(&accounts, &name, AccountChange { disabled: Some(false), ..Default::default() }).await?;
                tracing::info!(%name, "account enabled");
            }
            Self::SignOut(AccountArg { name }) => {
                let ended = accounts.close_sessions(&name, ACTOR).await?;
                check_found(&name, ended.is_some())?;
                tracing::info!(%name, sessions = ended, "signed out everywhere");
            }
        }
        Ok(())
    }
}

/// Also makes a change that leaves no admin.
async fn change(accounts: &Accounts, name: &AccountName, change: AccountChange<'_>) -> anyhow::Result<()> {
    check_found(name, accounts.change_account(name, &change, false, ACTOR).await? != AccountOutcome::Unknown)
}

fn check_found(name: &AccountName, found: bool) -> anyhow::Result<()> {
    if found { Ok(()) } else { bail!("there is no account {name}") }
}

/// Reads the password twice from a terminal, without showing it, or once as the first line of stdin.
fn read_password() -> anyhow::Result<String> {
    if stdin().is_terminal() {
        let prompt = |text| rpassword::prompt_password(text).context("cannot read the password");
        let first = prompt("Password (at least 12 characters): ")?;
        if prompt("Repeat the password: ")? != first {
            bail!("the passwords do not match");
        }
        return Ok(first);
    }
    let mut line = String::new();
    // One byte more than the longest password and its line end, so that a longer password is refused, not cut off.
    let bytes_max = NewPassword::MAX_BYTES as u64 + 3;
    stdin().lock().take(bytes_max).read_line(&mut line).context("cannot read the password from stdin")?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
