//! `admin`: accounts of the admin console.

use std::io::{BufRead, IsTerminal, Read, stdin};

use anyhow::{Context, bail};
use clap::Subcommand;

use super::ACTOR;
use super::arguments::account;
use crate::admin::password::hash_new;
use crate::app::stores;
use crate::config::Config;
use crate::domain::account::{AccountName, AccountRole, NewPassword};

#[derive(Subcommand)]
pub(super) enum AdminCommand {
    /// Create an account; the password is prompted for, or read from stdin if that is not a terminal
    Create {
        /// Name of the account, used to sign in
        #[arg(long, value_parser = account)]
        name: AccountName,
        /// Role: admin (may do everything), manager (changes what is granted) or viewer (sees what is granted)
        #[arg(long, value_parser = AccountRole::parse)]
        role: AccountRole,
    },
}

impl AdminCommand {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let Self::Create { name, role } = self;
        let hash = hash_new(NewPassword::parse(read_password()?)?)?;
        if !stores(config)?.ledger.create_account(&name, role, &hash, ACTOR).await? {
            bail!("account {name} already exists");
        }
        tracing::info!(%name, role = role.into_str(), "account created");
        Ok(())
    }
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
