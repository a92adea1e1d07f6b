//! Seals a challenge with its solution, and a pass. The buyer keeps them, but can neither read nor change them. They open only for one buyer
//! and one sale. So an open challenge costs no memory, and any instance can take the answer.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use uuid::Uuid;

use seckill_domain::captcha::{ChallengeKind, Pass};
use seckill_domain::ids::{SaleId, UserId};

/// Longer texts are not opened: ours have at most half this length.
const SEALED_MAX: usize = 256;
const NONCE_BYTES: usize = 24;

/// A sealed text does not open for another purpose.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
enum Purpose {
    Challenge = 1,
    Pass = 2,
}

/// An answer is compared with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Solution {
    Image { text: String },
    Slider { x: u16 },
    Work { difficulty: u8 },
}

impl Solution {
    pub(crate) fn kind(&self) -> ChallengeKind {
        match self {
            Self::Image { .. } => ChallengeKind::Image,
            Self::Slider { .. } => ChallengeKind::Slider,
            Self::Work { .. } => ChallengeKind::Work,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct OpenedChallenge {
    /// 32 hexadecimal digits that no other challenge has.
    pub(crate) serial: String,
    pub(crate) expires_at_ms: i64,
    pub(crate) solution: Solution,
}

pub(super) struct Seal {
    cipher: XChaCha20Poly1305,
}

impl Seal {
    /// All instances have the same secret. The key is derived from it.
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        let key = Key::from(blake3::derive_key("seckill captcha 2026", secret));
        Self { cipher: XChaCha20Poly1305::new(&key) }
    }

    /// Seals a new challenge. Returns it with its serial.
    pub(crate) fn close_challenge(
        &self,
        (sale, user): (SaleId, &UserId),
        solution: &Solution,
        expires_at_ms: i64,
    ) -> Option<(String, String)> {
        let mut content = expires_at_ms.to_be_bytes().to_vec();
        match solution {
            Solution::Image { text } => {
                content.push(b'i');
                content.extend_from_slice(text.as_bytes());
            }
            Solution::Slider { x } => {
                content.push(b's');
                content.extend_from_slice(&x.to_be_bytes());
            }
            Solution::Work { difficulty } => content.extend([b'w', *difficulty]),
        }
        let nonce = rand::random();
        Some((self.close(Purpose::Challenge, sale, user, nonce, &content)?, serial(&nonce)))
    }

    /// Opens a challenge; `None` if it is not one of ours for this buyer and this sale.
    pub(crate) fn open_challenge(&self, sale: SaleId, user: &UserId, sealed: &str) -> Option<OpenedChallenge> {
        let (nonce, content) = self.open(Purpose::Challenge, sale, user, sealed)?;
        let (expires_at_ms, content) = content.split_first_chunk()?;
        let solution = match content {
            [b'i', text @ ..] => Solution::Image { text: String::from_utf8(text.to_vec()).ok()? },
            [b's', high, low] => Solution::Slider { x: u16::from_be_bytes([*high, *low]) },
            [b'w', difficulty] => Solution::Work { difficulty: *difficulty },
            _ => return None,
        };
        Some(OpenedChallenge { serial: serial(&nonce), expires_at_ms: i64::from_be_bytes(*expires_at_ms), solution })
    }

    pub(crate) fn close_pass(&self, sale: SaleId, user: &UserId, pass: &Pass) -> Option<String> {
        let content = [&pass.expires_at_ms.to_be_bytes()[..], &pass.spent_before.to_be_bytes()].concat();
        self.close(Purpose::Pass, sale, user, rand::random(), &content)
    }

    /// Opens a pass; `None` if it is not one of ours for this buyer and this sale.
    pub(crate) fn open_pass(&self, sale: SaleId, user: &UserId, sealed: &str) -> Option<Pass> {
        let (_, content) = self.open(Purpose::Pass, sale, user, sealed)?;
        let (expires_at_ms, spent_before) = content.split_first_chunk()?;
        Some(Pass {
            expires_at_ms: i64::from_be_bytes(*expires_at_ms),
            spent_before: u32::from_be_bytes(spent_before.try_into().ok()?),
        })
    }

    /// The nonce is random: 192 bits do not repeat.
    fn close(
        &self,
        purpose: Purpose,
        sale: SaleId,
        user: &UserId,
        nonce: [u8; NONCE_BYTES],
        content: &[u8],
    ) -> Option<String> {
        let payload = Payload { msg: content, aad: &bound_to(purpose, sale, user) };
        let sealed = self.cipher.encrypt(&XNonce::from(nonce), payload).ok()?;
        Some(URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat()))
    }

    fn open(
        &self,
        purpose: Purpose,
        sale: SaleId,
        user: &UserId,
        sealed: &str,
    ) -> Option<([u8; NONCE_BYTES], Vec<u8>)> {
        if sealed.len() > SEALED_MAX {
            return None;
        }
        let sealed = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_BYTES>()?;
        let payload = Payload { msg: sealed, aad: &bound_to(purpose, sale, user) };
        Some((*nonce, self.cipher.decrypt(&XNonce::from(*nonce), payload).ok()?))
    }
}

/// A sealed text is bound to these bytes, which differ for every triple.
fn bound_to(purpose: Purpose, sale: SaleId, user: &UserId) -> Vec<u8> {
    [&[purpose as u8][..], &sale.get().to_be_bytes(), user.as_str().as_bytes()].concat()
}

/// The first 128 bits of a nonce.
fn serial(nonce: &[u8; NONCE_BYTES]) -> String {
    nonce.first_chunk().map(|bytes| Uuid::from_bytes(*bytes).simple().to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> UserId {
        UserId::parse(name).unwrap()
    }

    #[test]
    fn a_challenge_opens_for_its_buyer_and_its_sale_alone() {
        let (seal, sale, ann) = (Seal::new(&[1; 32]), SaleId::from_db(7), user("ann"));
        let solutions =
            [Solution::Image { text: "AC347".into() }, Solution::Slider { x: 234 }, Solution::Work { difficulty: 17 }];
        for solution in solutions {
            let (id, serial) = seal.close_challenge((sale, &ann), &solution, 1_800_000_000_000).unwrap();
            assert!(id.len() <= 100, "{id}");
            let again = seal.close_challenge((sale, &ann), &solution, 1_800_000_000_000).unwrap();
            assert!(again.0 != id && again.1 != serial, "sealed differently each time");
            assert!(!id.contains("AC347") && serial.len() == 32);
            let opened = OpenedChallenge { serial, expires_at_ms: 1_800_000_000_000, solution };
            assert_eq!(Seal::new(&[1; 32]).open_challenge(sale, &ann, &id), Some(opened), "another instance");
            assert_eq!(Seal::new(&[2; 32]).open_challenge(sale, &ann, &id), None, "another system");
            assert_eq!(seal.open_challenge(SaleId::from_db(8), &ann, &id), None);
            assert_eq!(seal.open_challenge(sale, &user("anna"), &id), None);
            assert_eq!(seal.open_pass(sale, &ann, &id), None, "a challenge is no pass");
        }
    }

    #[test]
    fn a_pass_opens_for_its_buyer_and_its_sale_alone() {
        let (seal, sale, ann) = (Seal::new(&[1; 32]), SaleId::from_db(7), user("ann"));
        let pass = Pass { expires_at_ms: 1_800_000_000_000, spent_before: 3 };
        let sealed = seal.close_pass(sale, &ann, &pass).unwrap();
        assert_eq!(seal.open_pass(sale, &ann, &sealed), Some(pass));
        assert_eq!(seal.open_pass(SaleId::from_db(8), &ann, &sealed), None);
        assert_eq!(seal.open_pass(sale, &user("bob"), &sealed), None);
        assert_eq!(seal.open_challenge(sale, &ann, &sealed), None);
        // Every character counts.
        for at in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(seal.open_pass(sale, &ann, &changed), None, "{at}");
        }
        for wrong in ["", "AAAA", "not base64!", &"A".repeat(5_000), &sealed[1..], &format!("{sealed}A")] {
            assert_eq!(seal.open_pass(sale, &ann, wrong), None, "{wrong}");
        }
    }
}
