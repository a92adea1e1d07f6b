//! Numbers as reports show them.

/// A number, or a dot if there is none.
pub(super) fn or_dot(number: Option<u64>) -> String {
    number.map_or_else(|| "·".to_owned(), with_commas)
}

/// Groups the digits: 1234567 as 1,234,567.
pub fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([7, 1_000, 1_234_567].map(with_commas), ["7", "1,000", "1,234,567"]);
    }
}
