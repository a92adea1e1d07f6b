//! How the templates of the console write times, amounts and numbers: `{{ show::time(sale.starts_at_ms) }}`.

use std::borrow::Borrow;
use std::fmt::Display;

use askama::filters::Safe;
use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::Value;

pub(super) use super::language::t;
pub(super) use super::words::{problem, problems, word};
use seckill_domain::currency::Currency;
use seckill_domain::order::OrderStatus;

/// Separates groups of three digits: a thin space at which no line is broken.
const GROUP: char = '\u{202f}';

/// Amounts, moments in ms, and references to them: askama passes fields by reference.
pub(crate) trait Number {
    fn number(&self) -> i64;
}

impl Number for i64 {
    fn number(&self) -> i64 {
        *self
    }
}
impl Number for DateTime<Utc> {
    fn number(&self) -> i64 {
        self.timestamp_millis()
    }
}
impl<N: Number + ?Sized> Number for &N {
    fn number(&self) -> i64 {
        (**self).number()
    }
}

/// A moment, in ms since the epoch. It is written in UTC, and the script replaces the text by the person's local time.
pub(crate) fn time(ms: impl Number) -> Safe<String> {
    let at = DateTime::<Utc>::from_timestamp_millis(ms.number()).unwrap_or_default();
    let (iso, text) = (at.to_rfc3339_opts(SecondsFormat::Millis, true), at.format("%Y-%m-%d %H:%M:%S"));
    Safe(format!("<time datetime=\"{iso}\" data-local>{text} UTC</time>"))
}

/// A moment that may not have come: `–` without it.
pub(crate) fn time_or_none<N: Number + Copy>(ms: &Option<N>) -> Safe<String> {
    ms.map_or_else(|| Safe("–".to_owned()), time)
}

/// An amount in minor units, with its currency: `CNY 1 234.00`.
pub(crate) fn money(cents: impl Number, currency: impl Display) -> String {
    let (code, cents) = (currency.to_string(), cents.number());
    // Rows that were changed by hand may name a currency that is none.
    let Ok(currency) = code.parse::<Currency>() else {
        return format!("{code} {cents} {}", t("minor units", "最小单位"));
    };
    let amount = currency.amount(cents);
    let (whole, rest) = amount.split_at(amount.find('.').unwrap_or(amount.len()));
    format!("{currency} {}{rest}", count(whole))
}

/// A number with its digits in groups of three: `12 345`.
pub(crate) fn count(n: impl Display) -> String {
    let text = n.to_string();
    match text.strip_prefix('-') {
        Some(digits) => format!("−{}", grouped(digits)),
        None => grouped(&text),
    }
}

/// A share of 0 to 1 in per cent, without decimals unless it is small or nearly whole: `93 %`, `0.4 %`; `–` without it.
pub(crate) fn percent(share: &Option<f64>) -> String {
    let Some(share) = share else { return "–".to_owned() };
    let percent = share * 100.0;
    let is_fine = (percent > 0.0 && percent < 1.0) || (percent > 99.0 && percent < 100.0);
    if is_fine { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// An order's status in people's words.
pub(crate) fn status(status: impl Borrow<OrderStatus>) -> &'static str {
    match status.borrow() {
        OrderStatus::Accepted => t("accepted", "已接受"),
        OrderStatus::PendingPayment => t("waiting for payment", "待付款"),
        OrderStatus::Paid => t("paid", "已付款"),
        OrderStatus::Refunding => t("refund under way", "退款中"),
        OrderStatus::Refunded => t("refunded", "已退款"),
        OrderStatus::Cancelled => t("cancelled", "已取消"),
        OrderStatus::Rejected => t("rejected", "已拒绝"),
    }
}

/// The same of a status that is stored as a text. One that only a newer version knows stays as it is.
pub(crate) fn status_text(text: &str) -> &str {
    match text.parse::<OrderStatus>() {
        Ok(known) => status(known),
        Err(_) => text,
    }
}

/// A number that may be larger than its count: `10 000 or more`.
pub(crate) fn counted(n: impl Display, more: impl Borrow<bool>) -> String {
    let suffix = if *more.borrow() { t(" or more", " 或更多") } else { "" };
    format!("{}{suffix}", count(n))
}

/// A duration in whole seconds as people say it: `45 s`, `3 min 5 s`, `2 h 10 min`, `4 d 1 h`.
pub(crate) fn age(seconds: impl Number) -> String {
    let seconds = seconds.number().max(0);
    let parts = |big: i64, big_unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{big} {big_unit}"),
        _ => format!("{big} {big_unit} {small} {small_unit}"),
    };
    let [d, h, min, s] = [t("d", "天"), t("h", "小时"), t("min", "分钟"), t("s", "秒")];
    match seconds {
        0..60 => format!("{seconds} {s}"),
        60..3600 => parts(seconds / 60, min, seconds % 60, s),
        3600..86_400 => parts(seconds / 3600, h, seconds % 3600 / 60, min),
        _ => parts(seconds / 86_400, d, seconds % 86_400 / 3600, h),
    }
}

/// A number at a glance: with room as `count` writes it, on a phone as `12.3k`, and in Chinese as `1.2万`.
pub(crate) fn glance(n: impl Display) -> Safe<String> {
    let whole = count(&n);
    let Ok(value @ 10_000..) = n.to_string().parse::<u64>() else { return Safe(whole) };
    let units: [(u64, &str); 2] =
        if t("en", "zh") == "zh" { [(100_000_000, "亿"), (10_000, "万")] } else { [(1_000_000, "M"), (1_000, "k")] };
    let (size, unit) = units.into_iter().find(|(size, _)| value >= *size).unwrap_or(units[1]);
    // Rounded down: less than there is, never more.
    let short = match value * 10 / size {
        tenths @ 1_000.. => (tenths / 10).to_string(),
        tenths => format!("{}.{}", tenths / 10, tenths % 10),
    };
    Safe(format!("<span class=\"long\">{whole}</span><span class=\"short\" aria-hidden=\"true\">{short}{unit}</span>"))
}

/// JSON in one line; nothing for an empty object. The template escapes it.
pub(crate) fn json(value: &Value) -> String {
    match value {
        Value::Object(members) if members.is_empty() => String::new(),
        _ => value.to_string(),
    }
}

fn grouped(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() * 2);
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(GROUP);
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::language::Language;
    use super::*;

    #[test]
    fn amounts_have_their_currency() {
        for (cents, currency, text) in [
            (123_456, "CNY", "CNY 1 234.56"),
            (-5, "HUF", "HUF −0.05"),
            (123_456, "JPY", "JPY 123 456"),
            (12_345, "IQD", "IQD 12.345"),
            (5, "ZZZ", "ZZZ 5 minor units"),
        ] {
            assert_eq!(money(cents, currency).replace(GROUP, " "), text);
        }
    }

    #[test]
    fn numbers_are_written_for_people() {
        let plain = |text: String| text.replace(GROUP, " ");
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1 000"),
            (-1_234_567, "−1 234 567"),
            (i64::MIN, "−9 223 372 036 854 775 808"),
        ] {
            assert_eq!(plain(count(n)), text);
        }
        for (seconds, text) in
            [(-1, "0 s"), (59, "59 s"), (60, "1 min"), (185, "3 min 5 s"), (7800, "2 h 10 min"), (349_200, "4 d 1 h")]
        {
            assert_eq!(age(seconds), text);
        }
        for (share, text) in [(0.0, "0 %"), (0.004, "0.4 %"), (0.925, "92 %"), (0.9951, "99.5 %"), (1.0, "100 %")] {
            assert_eq!(percent(&Some(share)), text);
        }
        assert_eq!(percent(&None), "–");
        assert_eq!(count(5_u64), "5");
        assert_eq!((plain(counted(10_000, true)), counted(7, false)), ("10 000 or more".to_owned(), "7".to_owned()));
    }

    #[test]
    fn a_number_at_a_glance_is_short() {
        let short =
            |n: u64| glance(n).0.rsplit_once("true\">").map(|(_, rest)| rest.trim_end_matches("</span>").to_owned());
        for (n, en, zh) in [(12_345, "12.3k", "1.2万"), (999_999, "999k", "99.9万"), (1_250_000, "1.2M", "125万")] {
            assert_eq!(short(n).as_deref(), Some(en));
            assert_eq!(Language::Chinese.render(|| short(n)).as_deref(), Some(zh));
        }
        assert_eq!((short(9_999), glance(9_999).0.replace(GROUP, " ")), (None, "9 999".to_owned()));
    }
}
