//! `token`: issues buyers' tokens, in development mode only.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, bail};

use super::arguments::user;
use super::print;
use crate::app::stores;
use seckill_buying::sale::Stores;
use seckill_config::Config;
use seckill_domain::ids::UserId;
use seckill_tokens::Tokens;

#[derive(clap::Args)]
pub(super) struct TokenArgs {
    /// Print a token for this buyer
    #[arg(long, required_unless_present = "count", conflicts_with = "count", value_parser = user)]
    user: Option<UserId>,
    /// The buyer's level, which a sale may ask for
    #[arg(long, default_value_t = 0)]
    level: i64,
    /// Seconds until the token expires; a negative number makes an expired token
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400, value_parser = clap::value_parser!(i64).range(-31_536_000..=31_536_000), allow_negative_numbers = true)]
    ttl: i64,
    /// Issue this many tokens, for the buyers PREFIX1, PREFIX2 and so on
    #[arg(long, value_name = "N", requires = "prefix", requires = "out", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    count: Option<u32>,
    /// First part of the buyers' names, with --count
    #[arg(long)]
    prefix: Option<String>,
    /// Write the tokens to this file, one line each: buyer, space, token
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl TokenArgs {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let issuer = TokenIssuer::new(config, &stores(config)?).await?;
        match (self.user, self.count, self.prefix, self.out) {
            (Some(user), ..) => print::lines([issuer.issue(&user, self.level, self.ttl)?]),
            (None, Some(count), Some(prefix), Some(file)) => {
                let mut lines = String::new();
                for n in 1..=count {
                    let user = UserId::parse(&format!("{prefix}{n}"))?;
                    writeln!(lines, "{user} {}", issuer.issue(&user, self.level, self.ttl)?)?;
                }
                std::fs::write(&file, lines).with_context(|| format!("cannot write {}", file.display()))
            }
            _ => bail!("give --user, or --count with --prefix and --out"),
        }
    }
}

pub(super) struct TokenIssuer {
    tokens: Tokens,
    now_s: i64,
}

impl TokenIssuer {
    pub(super) async fn new(config: &Config, stores: &Stores) -> anyhow::Result<Self> {
        if !config.dev {
            bail!("tokens are issued in development mode only (SECKILL_DEV=1)");
        }
        Ok(Self { tokens: Tokens::new(&config.auth, config.dev)?, now_s: stores.ledger.now_ms().await? / 1000 })
    }

    pub(super) fn issue(&self, user: &UserId, level: i64, ttl_s: i64) -> anyhow::Result<String> {
        let token = self.tokens.issue(user, level, self.now_s + ttl_s);
        token.context("without auth.jwt_secret, only the issuer can issue tokens: it has the private keys")
    }
}
