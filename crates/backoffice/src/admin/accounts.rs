//! Looking after accounts, for admins. Whatever takes an account's rights or password away counts from its next request on: each
//! request reads its session and its role from PostgreSQL.

use super::{AdminError, Office, admins_only, found};
use seckill_domain::account::{Account, AccountName, AccountRole, NewPassword};
use seckill_domain::ids::Invalid;
pub use seckill_postgres::accounts::ListedAccount;
use seckill_postgres::accounts::{AccountChange, AccountOutcome};

/// The longest password that the console sets, in characters. With four bytes each, they are the most that is hashed.
const PASSWORD_CHARS_MAX: usize = 256;
const _: () = assert!(PASSWORD_CHARS_MAX * 4 <= NewPassword::MAX_BYTES);

pub(crate) fn new_password(text: String, of: &AccountName) -> Result<NewPassword, Invalid> {
    if text.chars().count() > PASSWORD_CHARS_MAX {
        return Err(Invalid::new("password", "must be 12 to 256 characters"));
    }
    NewPassword::parse(text, of)
}

impl Office {
    pub(crate) async fn accounts(&self, account: &Account) -> Result<Vec<ListedAccount>, AdminError> {
        admins_only(account)?;
        Ok(self.ledger.accounts.accounts(self.idle_ms).await?)
    }

    pub(crate) async fn create_account(
        &self,
        account: &Account,
        name: &AccountName,
        role: AccountRole,
        password: NewPassword,
    ) -> Result<(), AdminError> {
        admins_only(account)?;
        let hash = self.hasher.hash(password).await?;
        let created = self.ledger.accounts.create_account(name, role, &hash, account.name.as_str()).await?;
        if created { Ok(()) } else { Err(AdminError::Conflict(format!("account {name} exists already"))) }
    }

    /// Changes an account: all of the change, or nothing. `None` changes nothing. A new password ends all sessions of the account.
    pub(crate) async fn change_account(
        &self,
        account: &Account,
        name: &AccountName,
        role: Option<AccountRole>,
        disabled: Option<bool>,
        password: Option<NewPassword>,
    ) -> Result<(), AdminError> {
        admins_only(account)?;
        if role.is_some_and(|role| role != account.role) && *name == account.name {
            let problem = "nobody changes the role of the own account: another admin can do it";
            return Err(AdminError::Conflict(problem.to_owned()));
        }
        // Nothing is hashed for a name that no account has.
        found(self.ledger.accounts.has_account(name).await?, "account")?;
        let hash = match password {
            Some(password) => Some(self.hasher.hash(password).await?),
            None => None,
        };
        let of_row = AccountChange { role, disabled, password_hash: hash.as_deref() };
        match self.ledger.accounts.change_account(name, &of_row, true, account.name.as_str()).await? {
            AccountOutcome::Changed => Ok(()),
            AccountOutcome::Unknown => Err(AdminError::Unknown("account")),
            AccountOutcome::LastAdmin => Err(AdminError::Conflict(format!(
                "{name} is the last admin who can sign in: make another account an admin first"
            ))),
        }
    }
}
