//! A slot is one limiter's count: one key of one policy of one application.

/// An escaped key of more bytes is stored as a hash.
const PLAIN_MAX: usize = 64;

/// Escaped so that no character has a meaning in Redis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SlotKey {
    app: String,
    policy: String,
    key: String,
    spread: bool,
}

impl SlotKey {
    /// The caller's `key` (a user, an address…) may be empty. Slots of one application can be checked in one script. Each slot of a
    /// policy that is `spread` has its own hash tag, so that a cluster can distribute them.
    pub fn new(app: &str, policy: &str, key: &str, spread: bool) -> Self {
        Self { app: escaped(app, false), policy: escaped(policy, false), key: bounded(escaped(key, true)), spread }
    }

    pub fn app(&self) -> &str {
        &self.app
    }

    pub fn policy(&self) -> &str {
        &self.policy
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn is_spread(&self) -> bool {
        self.spread
    }
}

/// No escaped key has the mark of a hash.
fn bounded(key: String) -> String {
    if key.len() <= PLAIN_MAX { key } else { format!("~{}", &blake3::hash(key.as_bytes()).to_hex()[..32]) }
}

/// Escapes bytes as %XX: a brace would move the hash tag, and a colon in a name would make two slots the same.
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
