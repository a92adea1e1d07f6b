//! Figures of several rounds, their median and their range.

use serde::Serialize;
use serde_json::{Map, Value, json};

#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub(crate) struct Series(Vec<f64>);

impl Series {
    pub(crate) fn of(rounds: impl IntoIterator<Item = f64>) -> Self {
        Self(rounds.into_iter().collect())
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted
    }

    pub(crate) fn median(&self) -> f64 {
        let sorted = self.sorted();
        match (sorted.get((sorted.len().max(1) - 1) / 2), sorted.get(sorted.len() / 2)) {
            (Some(low), Some(high)) => f64::midpoint(*low, *high),
            _ => f64::NAN,
        }
    }

    pub(crate) fn spread(&self) -> (f64, f64) {
        let sorted = self.sorted();
        (sorted.first().copied().unwrap_or(f64::NAN), sorted.last().copied().unwrap_or(f64::NAN))
    }

    /// The ratios round by round: the figures of one round were measured within seconds of each other.
    pub(crate) fn over(&self, other: &Self) -> Self {
        Self::of(self.0.iter().zip(&other.0).map(|(a, b)| a / b))
    }

    pub(crate) fn json(&self) -> Value {
        let (min, max) = self.spread();
        json!({ "median": self.median(), "min": min, "max": max, "rounds": self })
    }

    /// The median and the range, such as `123,400 (98,000–130,000)`.
    pub(crate) fn with_range(&self, write: impl Fn(f64) -> String) -> String {
        let (min, max) = self.spread();
        format!("{} ({}–{})", write(self.median()), write(min), write(max))
    }
}

pub(crate) struct Cell {
    pub column: String,
    pub text: String,
    pub json: Value,
}

impl Cell {
    pub(crate) fn median(column: impl Into<String>, series: &Series, write: impl Fn(f64) -> String) -> Self {
        Self { column: column.into(), text: write(series.median()), json: series.json() }
    }

    pub(crate) fn range(column: impl Into<String>, series: &Series, write: impl Fn(f64) -> String) -> Self {
        Self { column: column.into(), text: series.with_range(write), json: series.json() }
    }
}

/// The figures of a part of the bench. The first row has all columns.
#[derive(Default)]
pub(crate) struct Table {
    /// The paragraph above, and the heading of the rows' names.
    pub above: String,
    pub heading: &'static str,
    pub rows: Vec<(String, Vec<Cell>)>,
    pub below: String,
}

impl Table {
    pub(crate) fn markdown(&self) -> String {
        let first = self.rows.first().map_or(&[][..], |(_, cells)| cells);
        let columns: Vec<&str> = first.iter().map(|cell| cell.column.as_str()).collect();
        let mut lines = vec![
            format!("{}\n\n| {} | {} |", self.above, self.heading, columns.join(" | ")),
            format!("|---|{}", "---|".repeat(columns.len())),
        ];
        for (name, cells) in &self.rows {
            let text = |column: &&str| {
                let cell = cells.iter().find(|cell| cell.column == *column);
                cell.map_or("", |cell| cell.text.as_str())
            };
            lines.push(format!("| {name} | {} |", columns.iter().map(text).collect::<Vec<_>>().join(" | ")));
        }
        format!("{}\n\n{}\n\n", lines.join("\n"), self.below)
    }

    pub(crate) fn json(&self) -> Value {
        let of_row = |cells: &[Cell]| cells.iter().map(|cell| (cell.column.clone(), cell.json.clone())).collect();
        let rows = self.rows.iter().map(|(name, cells)| (name.clone(), Value::Object(of_row(cells))));
        rows.collect::<Map<_, _>>().into()
    }
}

/// The wait that this share of some waits did not exceed, in ms; not a number without any.
pub(crate) fn percentile_ms(sorted_us: &[u32], share: f64) -> f64 {
    let at = (sorted_us.len() as f64 * share) as usize;
    sorted_us.get(at.min(sorted_us.len().saturating_sub(1))).map_or(f64::NAN, |us| f64::from(*us) / 1e3)
}

/// Rounds to three digits, because the others are noise: `123,000`.
pub(crate) fn thousands(n: f64) -> String {
    let unit = 10f64.powi((n.abs().max(1.0).log10().floor() - 2.0).max(0.0) as i32);
    let digits = format!("{:.0}", (n / unit).round() * unit);
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|g| str::from_utf8(g).ok()).collect();
    groups.join(",")
}

pub(crate) fn two_places(n: f64) -> String {
    format!("{n:.2}")
}

pub(crate) fn one_place(n: f64) -> String {
    format!("{n:.1}")
}

pub(crate) fn whole(n: f64) -> String {
    format!("{n:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The median of an even number of rounds lies between two, and a ratio compares figures of one round.
    #[test]
    fn rounds_have_a_median_and_a_range() {
        let series = Series::of([4.0, 1.0, 3.0, 2.0]);
        assert_eq!((series.median(), series.spread()), (2.5, (1.0, 4.0)));
        assert_eq!(series.over(&Series::of([8.0, 1.0, 3.0, 4.0])).with_range(two_places), "0.75 (0.50–1.00)");
        assert_eq!([7.0, 1234.0, 123_456.0].map(thousands), ["7", "1,230", "123,000"]);
    }

    #[test]
    fn percentiles_are_of_sorted_waits() {
        let waits: Vec<u32> = (1..=100).map(|ms| ms * 1000).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|share| percentile_ms(&waits, share)), [51.0, 100.0, 100.0]);
        assert!(percentile_ms(&[], 0.99).is_nan());
    }
}
