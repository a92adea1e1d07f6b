//! Amounts of money as people read them.

/// An amount of minor units in the currency's main unit. ISO 4217 lists the currencies that are not divided by a hundred.
pub fn price(minor_units: i64, currency: &str) -> String {
    let digits = match currency {
        "BIF" | "CLP" | "DJF" | "GNF" | "ISK" | "JPY" | "KMF" | "KRW" | "PYG" | "RWF" | "UGX" | "UYI" | "VND"
        | "VUV" | "XAF" | "XOF" | "XPF" => 0,
        "BHD" | "IQD" | "JOD" | "KWD" | "LYD" | "OMR" | "TND" => 3,
        _ => 2,
    };
    let unit = 10_i64.pow(digits);
    match digits {
        0 => minor_units.to_string(),
        _ => format!("{}.{:0width$}", minor_units / unit, minor_units % unit, width = digits as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_have_the_digits_of_their_currency() {
        for (units, currency, text) in [
            (9_900, "CNY", "99.00"),
            (5, "EUR", "0.05"),
            (0, "USD", "0.00"),
            (9_900, "JPY", "9900"),
            (1_234, "KWD", "1.234"),
            (100_000_000_000, "CNY", "1000000000.00"),
        ] {
            assert_eq!(price(units, currency), text);
        }
    }
}
