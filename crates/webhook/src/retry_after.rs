//! The header Retry-After (RFC 9110, 10.2.3): a number of seconds, or a date. Proxies send dates.

use std::time::{Duration, SystemTime};

use httpdate::parse_http_date;

/// How long an answer with this Retry-After asks to wait; `None` if it is neither form. A date is compared with the `date` of the same answer:
/// the receiver's clock may be wrong. Without one it is compared with our clock.
pub fn retry_after(after: &str, date: Option<&str>) -> Option<Duration> {
    if let Ok(seconds) = after.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = parse_http_date(after.trim()).ok()?;
    let now = date.and_then(|date| parse_http_date(date.trim()).ok()).unwrap_or_else(SystemTime::now);
    Some(until.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_asked_for_in_seconds_or_by_a_date() {
        let noon = Some("Sun, 06 Nov 1994 12:00:00 GMT");
        let asked = |after, date| retry_after(after, date).map(|pause| pause.as_secs());
        assert_eq!(asked("120", None), Some(120));
        assert_eq!(asked(" 0 ", noon), Some(0));
        for date in ["Sun, 06 Nov 1994 12:03:20 GMT", "Sunday, 06-Nov-94 12:03:20 GMT", "Sun Nov  6 12:03:20 1994"] {
            assert_eq!(asked(date, noon), Some(200), "{date}");
            assert_eq!(asked(date, None), Some(0), "long ago by our clock");
        }
        for wrong in ["", "-1", "1.5", "soon", "2026-11-29T12:00:00Z"] {
            assert_eq!(asked(wrong, noon), None, "{wrong}");
        }
    }
}
