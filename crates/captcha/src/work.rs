//! A proof of work: a number that makes a hash begin with zeros. Finding it takes many tries, checking it takes one. People need
//! neither see nor read anything.

use sha2::{Digest, Sha256};

/// More digits than any search needs.
const NONCE_DIGITS_MAX: usize = 20;

/// Whether SHA-256(prefix + nonce) begins with at least `difficulty` zero bits. The nonce is a decimal number as text.
pub fn judge(prefix: &str, nonce: &str, difficulty: u32) -> bool {
    let is_number = (1..=NONCE_DIGITS_MAX).contains(&nonce.len()) && nonce.bytes().all(|b| b.is_ascii_digit());
    is_number && zero_bits(prefix, nonce) >= difficulty
}

/// Finds the lowest nonce, as a page does. It takes 2^`difficulty` tries on average.
pub fn solve(prefix: &str, difficulty: u32) -> Option<String> {
    (0..u64::MAX).map(|nonce| nonce.to_string()).find(|nonce| zero_bits(prefix, nonce) >= difficulty)
}

fn zero_bits(prefix: &str, nonce: &str) -> u32 {
    let hash = Sha256::new().chain_update(prefix).chain_update(nonce).finalize();
    let zeros = hash.iter().take_while(|byte| **byte == 0).count();
    let next = hash.get(zeros).map_or(0, |byte| byte.leading_zeros());
    // A hash has 256 bits.
    zeros as u32 * 8 + next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_right_for_its_prefix_and_difficulty() {
        let found = solve("a prefix", 10).unwrap();
        assert!(judge("a prefix", &found, 10) && judge("a prefix", &found, 0));
        assert!(!judge("a prefix", &found, 256));
        let others = (0..20).filter(|n| judge(&format!("prefix {n}"), &found, 10)).count();
        assert!(others <= 1, "an answer does for its own prefix: {others} of 20 others");
    }

    /// Another program's SHA-256 of these texts.
    #[test]
    fn zero_bits_are_counted_from_the_first() {
        for (text, nonce, bits) in [("ab", "c", 0), ("hello", "0", 1), ("seckill", "198", 9), ("seckill", "805", 10)] {
            assert_eq!(zero_bits(text, nonce), bits, "{text}{nonce}");
        }
    }

    #[test]
    fn a_nonce_is_a_decimal_number() {
        assert!(judge("p", "0", 0) && judge("p", "00000000000000000000", 0));
        for wrong in ["", "-1", "+1", "1.0", "1e3", "0x1", " 1", "1 ", "000000000000000000000", "\u{661}"] {
            assert!(!judge("p", wrong, 0), "{wrong:?}");
        }
    }
}
