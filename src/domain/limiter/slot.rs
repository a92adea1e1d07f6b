//! A slot is what one limiter counts together: one key of one policy of one application.

/// The longest key that a caller may give, in characters, and the longest name of an application or policy, in bytes.
const KEY_MAX: usize = 128;
/// A key that is longer than this when it is escaped, in bytes, is written as a hash: Redis keeps no long texts of callers.
const PLAIN_MAX: usize = 64;
const NAME_MAX: usize = 64;

/// A key of a policy, escaped so that no character has a meaning in Redis. A long one is a hash.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SlotKey {
    app: String,
    policy: String,
    key: String,
    spread: bool,
}

/// Why a slot cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrongSlot {
    #[error("key must be at most 128 characters")]
    KeyTooLong,
    #[error("names of apps and policies are 1 to 64 bytes")]
    WrongName,
}

impl SlotKey {
    /// `key` is the caller's (a user, an address…) and may be empty. Slots of one application can be checked in one
    /// script. Each slot of a policy that is `spread` has a hash tag of its own, so that a cluster can distribute them.
    pub fn new(app: &str, policy: &str, key: &str, spread: bool) -> Result<Self, WrongSlot> {
        if key.chars().count() > KEY_MAX {
            return Err(WrongSlot::KeyTooLong);
        }
        if [app, policy].into_iter().any(|name| name.is_empty() || name.len() > NAME_MAX) {
            return Err(WrongSlot::WrongName);
        }
        Ok(Self { app: escaped(app, false), policy: escaped(policy, false), key: bounded(escaped(key, true)), spread })
    }

    pub(crate) fn app(&self) -> &str {
        &self.app
    }

    pub(crate) fn policy(&self) -> &str {
        &self.policy
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn is_spread(&self) -> bool {
        self.spread
    }
}

/// A hash of 128 bits has a mark that no escaped key has.
fn bounded(key: String) -> String {
    if key.len() <= PLAIN_MAX { key } else { format!("~{}", &blake3::hash(key.as_bytes()).to_hex()[..32]) }
}

/// Writes every byte that is not plain as %XX: a brace would move the hash tag, and a colon in a name would make two
/// slots the same.
fn escaped(text: &str, colons: bool) -> String {
    let mut plain = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' => plain.push(byte.into()),
            b':' if colons => plain.push(':'),
            _ => plain.push_str(&format!("%{byte:02X}")),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_differ_and_contain_no_special_character() {
        let slot = |app, policy, key| SlotKey::new(app, policy, key, false).unwrap();
        assert_ne!(slot("a:b", "c", ""), slot("a", "b:c", ""));
        assert_ne!(slot("a", "p", "x%7D"), slot("a", "p", "x}"));
        let hostile = slot("{a}", "p\r\n", "}{*'\0é::1");
        assert_eq!(
            (hostile.app(), hostile.policy(), hostile.key()),
            ("%7Ba%7D", "p%0D%0A", "%7D%7B%2A%27%00%C3%A9::1")
        );
        let long = |last| SlotKey::new("a", "p", &format!("{}{last}", "\u{1F600}".repeat(100)), false).unwrap();
        assert_ne!(long('a'), long('b'));
        assert_eq!(long('a').key().len(), 33);
        assert_eq!(SlotKey::new("a", "p", &"k".repeat(129), false), Err(WrongSlot::KeyTooLong));
        assert_eq!(SlotKey::new("", "p", "", false), Err(WrongSlot::WrongName));
    }
}
