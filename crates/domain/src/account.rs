//! Accounts of the console and its API, and what each may see and change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr};
use utoipa::ToSchema;

use super::alarm::AlarmKind;
use super::ids::Invalid;
use super::policy::{Name, Role};

/// The name of an account: 1 to 64 of `A-Z a-z 0-9 _ . - @`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String, pattern = "^[A-Za-z0-9_.@-]{1,64}$")]
pub struct AccountName(Box<str>);

impl AccountName {
    pub fn parse(text: &str, field: &'static str) -> Result<Self, Invalid> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-' | b'@');
        if (1..=64).contains(&text.len()) && text.bytes().all(fits) {
            Ok(Self(text.into()))
        } else {
            Err(Invalid::new(field, "must be 1 to 64 of A-Z a-z 0-9 _ . - @"))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The most that an account may do, whatever it is granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, EnumString, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum AccountRole {
    /// Sees and changes everything.
    Admin,
    /// Runs sales: sees and changes sales, orders, money and queues, and the policies that it was granted.
    Manager,
    /// Sees sales, orders without their buyers, and the policies that it was granted, and changes nothing.
    Viewer,
}

impl AccountRole {
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        text.parse().map_err(|_| Invalid::new("role", "must be admin, manager or viewer"))
    }
}

/// A new password. Its length is checked, and that it is not a common one (NIST SP 800-63B, 5.1.1.2).
pub struct NewPassword(String);

/// Words of which the commonest passwords are made, in small letters.
const COMMON_WORDS: [&str; 20] = [
    "password", "passwort", "seckill", "welcome", "letmein", "iloveyou", "changeme", "default", "monkey", "dragon",
    "master", "summer", "winter", "spring", "autumn", "secret", "admin", "login", "test", "root",
];
/// Keys that lie side by side, and those below each other.
const KEYBOARD: [&str; 4] = ["qwertyuiop", "asdfghjkl", "zxcvbnm", "1qaz2wsx3edc4rfv5tgb6yhn7ujm8ik9ol"];

impl NewPassword {
    const MIN_CHARS: usize = 12;
    /// Different characters that are not easily guessed.
    const MIN_DIFFERENT: usize = 6;
    /// Bounds the work of hashing.
    pub const MAX_BYTES: usize = 1024;

    pub fn parse(text: String, of: &AccountName) -> Result<Self, Invalid> {
        if text.chars().count() < Self::MIN_CHARS || text.len() > Self::MAX_BYTES {
            return Err(Invalid::new("password", "must be at least 12 characters, and at most 1024 bytes"));
        }
        if unforeseen(&text, of).len() < Self::MIN_DIFFERENT {
            return Err(Invalid::new(
                "password",
                "is easily guessed: it must have at least 6 different characters beside common words, the account's name, and \
                 sequences such as 1234, qwerty and aaaa",
            ));
        }
        Ok(Self(text))
    }

    pub fn into_text(self) -> String {
        self.0
    }
}

/// The different characters of a password outside common words, the account's name and sequences.
fn unforeseen(password: &str, of: &AccountName) -> BTreeSet<char> {
    let plain = |text: &str| text.to_lowercase().replace('@', "a").replace('0', "o").replace('$', "s");
    let (mut rest, name) = (plain(password), plain(of.as_str()));
    // A name of one or two letters is in every sentence.
    for word in COMMON_WORDS.into_iter().chain((name.len() > 2).then_some(name.as_str())) {
        rest = rest.replace(word, "");
    }
    let is_beside = |pair: [char; 2]| KEYBOARD.iter().any(|row| row.contains(&String::from_iter(pair)));
    let continues = |a: char, b: char| u32::from(a).abs_diff(b.into()) <= 1 || is_beside([a, b]) || is_beside([b, a]);
    let before = std::iter::once(None).chain(rest.chars().map(Some));
    let both = before.zip(rest.chars());
    both.filter(|(before, next)| before.is_none_or(|before| !continues(before, *next))).map(|(_, next)| next).collect()
}

#[derive(Debug, Clone)]
pub struct Account {
    pub name: AccountName,
    pub role: AccountRole,
    pub grants: BTreeMap<Name, Role>,
}

/// What an account may do with an application's policies.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Granted {
    pub account: String,
    pub role: Role,
}

/// A valid token of an application, without its secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AppToken {
    /// The first digits of the token's hash, to tell tokens apart.
    pub id: String,
    pub created_at_ms: i64,
    /// When the token ends; null if it has not been replaced.
    pub ends_at_ms: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    /// The account may not learn whether the thing exists.
    Hidden,
    /// The account may see the thing, but not change it.
    Forbidden,
}

impl Account {
    pub fn is_admin(&self) -> bool {
        self.role == AccountRole::Admin
    }

    /// Whether the account may run sales: see money and queues, plan and change sales, refund, and retry failed work.
    pub fn may_operate(&self) -> bool {
        matches!(self.role, AccountRole::Admin | AccountRole::Manager)
    }

    /// Whether the account may see buyers' ids and network addresses.
    pub fn sees_buyers(&self) -> bool {
        self.may_operate()
    }

    /// Some alarms name an application, which the account may not know.
    pub fn sees_alarms(&self, kind: AlarmKind) -> bool {
        self.is_admin() || !kind.names_application()
    }

    pub fn sees(&self, app: &Name) -> bool {
        self.is_admin() || self.grants.contains_key(app)
    }

    fn owns(&self, app: &Name) -> bool {
        match self.role {
            AccountRole::Admin => true,
            AccountRole::Manager => self.grants.get(app) == Some(&Role::Owner),
            AccountRole::Viewer => false,
        }
    }

    /// Whether the account may change a policy that these applications share. It is `Hidden` if the account may not see all of them.
    pub fn may_change(&self, apps: &[Name]) -> Result<(), Denial> {
        if !apps.iter().all(|app| self.sees(app)) {
            return Err(Denial::Hidden);
        }
        if apps.iter().all(|app| self.owns(app)) { Ok(()) } else { Err(Denial::Forbidden) }
    }
}

/// The author of a change to a policy, and the applications whose policies they may change.
#[derive(Debug, Clone)]
pub struct Actor {
    pub name: String,
    /// `None` means all applications.
    pub(crate) owns: Option<BTreeSet<Name>>,
}

impl Actor {
    pub fn may_change(&self, apps: &[Name]) -> bool {
        self.owns.as_ref().is_none_or(|owns| apps.iter().all(|app| owns.contains(app)))
    }
}

impl From<&str> for Actor {
    /// An actor that may change everything, such as the command line.
    fn from(name: &str) -> Self {
        Self { name: name.to_owned(), owns: None }
    }
}

impl From<&Account> for Actor {
    fn from(account: &Account) -> Self {
        let owned = || account.grants.keys().filter(|app| account.owns(app)).cloned().collect();
        Self { name: account.name.to_string(), owns: (!account.is_admin()).then(owned) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_that_are_tried_first_are_refused() {
        let of = AccountName::parse("Jo.Smith", "name").unwrap();
        let weak = "123456789012 111111111111 210987654321 abcdefghijkl abcabcabcabc qwertyuiop12 1qaz2wsx3edc hello1hello1 \
                    password1234 Password2024! P@ssw0rdP@ssw0rd Seckill-Admin-2024 jo.smith-2024 zxcvbnmasdfghjkl";
        for weak in weak.split(' ') {
            assert_eq!(NewPassword::parse(weak.into(), &of).err().map(|why| why.field), Some("password"), "{weak}");
        }
        let good = [
            "correct horse battery",
            "4f9c1b7e02d8",
            "837502916473",
            "我喜欢在周末去山里散步看书",
            "tr0ub4dor&3-kettle",
        ];
        for good in good {
            assert!(NewPassword::parse(good.into(), &of).is_ok(), "{good}");
        }
    }
}
