//! What is counted together: one key of one policy of one app.

/// The longest key that a caller may give, and the longest name of an app or a policy, in bytes.
const KEY_MAX: usize = 128;
const NAME_MAX: usize = 64;

/// A key of a policy, in letters that mean nothing to Redis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SlotKey {
    app: String,
    policy: String,
    key: String,
    spread: bool,
}

/// Why there is no such slot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrongSlot {
    #[error("key must be at most 128 bytes")]
    KeyTooLong,
    #[error("names of apps and policies are 1 to 64 bytes")]
    WrongName,
}

impl SlotKey {
    /// `key` is the caller's (a user, an address…) and may be empty. All slots of one app may meet in one call of
    /// Redis; those of a policy that is `spread` are each alone, so that a cluster can share them out.
    pub fn new(app: &str, policy: &str, key: &str, spread: bool) -> Result<Self, WrongSlot> {
        if key.len() > KEY_MAX {
            return Err(WrongSlot::KeyTooLong);
        }
        if [app, policy].into_iter().any(|name| name.is_empty() || name.len() > NAME_MAX) {
            return Err(WrongSlot::WrongName);
        }
        Ok(Self { app: escaped(app, false), policy: escaped(policy, false), key: escaped(key, true), spread })
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

/// Braces would move the hash tag, a colon in a name would make two slots one: what is not plain becomes %XX.
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
    fn no_two_slots_are_one_and_no_letter_of_redis_is_left() {
        let slot = |app, policy, key| SlotKey::new(app, policy, key, false).unwrap();
        assert_ne!(slot("a:b", "c", ""), slot("a", "b:c", ""));
        assert_ne!(slot("a", "p", "x%7D"), slot("a", "p", "x}"));
        let hostile = slot("{a}", "p\r\n", "}{*'\0é::1");
        assert_eq!(
            (hostile.app(), hostile.policy(), hostile.key()),
            ("%7Ba%7D", "p%0D%0A", "%7D%7B%2A%27%00%C3%A9::1")
        );
        assert_eq!(SlotKey::new("a", "p", &"k".repeat(129), false), Err(WrongSlot::KeyTooLong));
        assert_eq!(SlotKey::new("", "p", "", false), Err(WrongSlot::WrongName));
    }
}
