//! What the bench does not measure. Each figure is an option of the program, and each table says what was assumed.

use clap::Args;
use serde::Serialize;

/// Figures of the network, of disks and of the plan.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
pub struct Assumed {
    /// Assumed: microseconds of a round trip between two machines
    #[arg(long, global = true, value_name = "US", default_value_t = 200.0, value_parser = figure)]
    pub network_us: f64,
    /// Assumed: microseconds in which PostgreSQL's disk flushes (pg_test_fsync measures it)
    #[arg(long, global = true, value_name = "US", default_value_t = 200.0, value_parser = figure)]
    pub flush_us: f64,
    /// Assumed: microseconds from a flush on the primary to that on its synchronous standby; 0 without one
    #[arg(long, global = true, value_name = "US", default_value_t = 0.0, value_parser = figure)]
    pub standby_us: f64,
    /// Assumed: microseconds of the load balancer's processor for a TLS handshake, one a buyer; 0 if TLS ends before it
    #[arg(long, global = true, value_name = "US", default_value_t = 0.0, value_parser = figure)]
    pub handshake_us: f64,
    /// Assumed: the share of a processor that is planned for
    #[arg(long, global = true, value_name = "SHARE", default_value_t = 0.5, value_parser = share)]
    pub fill: f64,
}

impl Assumed {
    /// One machine: no network between its processes, and no standby.
    pub fn one_machine() -> Self {
        Self { network_us: 0.0, flush_us: 200.0, standby_us: 0.0, handshake_us: 0.0, fill: 1.0 }
    }
}

/// 0 or more, and not endless.
///
/// # Errors
/// The text is no such number.
pub fn figure(text: &str) -> Result<f64, String> {
    let figure: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if (0.0..=1e12).contains(&figure) { Ok(figure) } else { Err("must be between 0 and 10^12".to_owned()) }
}

/// Above 0, and 1 at most.
///
/// # Errors
/// The text is no such number.
pub fn share(text: &str) -> Result<f64, String> {
    let share = figure(text)?;
    if share > 0.0 && share <= 1.0 { Ok(share) } else { Err("must be above 0, and 1 at most".to_owned()) }
}

/// A whole number from 1 to a million.
///
/// # Errors
/// The text is no such number.
pub fn count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count @ 1..=1_000_000) => Ok(count),
        _ => Err("must be a whole number from 1 to 1000000".to_owned()),
    }
}

/// How many machines or processors of a kind: 1 to 10,000.
///
/// # Errors
/// The text is no such number.
pub fn machines(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(machines @ 1..=10_000) => Ok(machines),
        _ => Err("must be a whole number from 1 to 10000".to_owned()),
    }
}

/// The same, or none.
///
/// # Errors
/// The text is no such number.
pub fn machines_or_none(text: &str) -> Result<u32, String> {
    if text == "0" { Ok(0) } else { machines(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nonsense is refused: a simulation of it would not end.
    #[test]
    fn only_sensible_figures_are_taken() {
        assert_eq!(figure("0.5"), Ok(0.5));
        for wrong in ["", "x", "NaN", "inf", "-1", "1e13"] {
            assert!(figure(wrong).is_err(), "{wrong}");
        }
        assert!(share("0").is_err() && share("1.1").is_err() && share("1").is_ok());
        assert!(count("0").is_err() && count("1000001").is_err() && count("8") == Ok(8));
        assert!(machines("0").is_err() && machines("10001").is_err() && machines_or_none("0") == Ok(0));
    }
}
