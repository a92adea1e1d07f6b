//! Accounts of the admin console.

use std::io::{BufRead, IsTerminal, Read, stdin};

use anyhow::{Context, bail};
use clap::Subcommand;

use super::ACTOR;
use crate::admin::password::hash_new;
use crate::app::stores;
use crate::config::Config;
use crate::domain::account::{AccountName, AccountRole, NewPassword};

#[derive(Subcommand)]
pub enum AdminCommand {
    /// Make an account; its password is asked for, or read from stdin where that is no terminal
    Create {
        #[arg(long)]
        name: String,
        /// admin (everything), manager (what is granted) or viewer (sees what is granted)
        #[arg(long, value_parser = AccountRole::parse)]
        role: AccountRole,
    },
}

impl AdminCommand {
    pub async fn run(self, config: &Config) -> anyhow::Result<()> {
        let Self::Create { name, role } = self;
        let name = AccountName::parse(&name, "name")?;
        let hash = hash_new(NewPassword::parse(password()?)?)?;
        if !stores(config)?.ledger.create_account(&name, role, &hash, ACTOR).await? {
            bail!("there is an account {name} already");
        }
        tracing::info!(%name, role = role.into_str(), "account created");
        Ok(())
    }
}

/// Without an echo from a terminal, and twice, because nobody sees what was typed; else the first line.
fn password() -> anyhow::Result<String> {
    if stdin().is_terminal() {
        let ask = |prompt| rpassword::prompt_password(prompt).context("cannot read the password");
        let first = ask("Password (at least 12 characters): ")?;
        if ask("Once more: ")? != first {
            bail!("the two are not the same");
        }
        return Ok(first);
    }
    let mut line = String::new();
    // One byte more than a password and its line's end may have: a longer one is refused, and not cut off.
    let most = NewPassword::MAX_BYTES as u64 + 3;
    stdin().lock().take(most).read_line(&mut line).context("cannot read the password from stdin")?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
