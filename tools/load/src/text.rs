//! The report as text for a terminal.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use super::measurements::Bucket;
use super::plan::Role;
use super::report::{LATE_MS, Lag, Latency, Report};
use super::shape::{Shape, WAITING_SHARE};

const LABEL_WIDTH: usize = 30;
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

impl Report {
    /// A summary of about thirty lines.
    pub fn render_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_text(&mut text);
        text
    }

    fn write_text(&self, out: &mut String) -> fmt::Result {
        self.write_head(out)?;
        self.write_answers(out)?;
        self.write_latencies(out)?;
        self.write_timeline(out)
    }

    fn write_head(&self, out: &mut String) -> fmt::Result {
        let seconds = self.duration_ms as f64 / 1_000.0;
        writeln!(out, "Rush on sale {} at {}, seed {}", self.sale_id, self.base, self.seed)?;
        writeln!(
            out,
            "  crowd     {} buyers and {} bots over at most {} connections, {}",
            with_commas(self.buyers as u64),
            with_commas(self.bots as u64),
            with_commas(self.connections as u64),
            self.pace(),
        )?;
        let percent = |number: usize| 100.0 * number as f64 / self.buyers.max(1) as f64;
        let mixed = self.mix.iter().map(|(role, number)| {
            format!("{} ({:.1} %) {}", with_commas(*number as u64), percent(*number), role.heading())
        });
        writeln!(out, "  mixed in  {}", mixed.collect::<Vec<_>>().join(", "))?;
        writeln!(
            out,
            "  answers   {} to {} arrivals in {seconds:.2} s, {} a second; {} retries",
            with_commas(self.answers),
            with_commas(self.arrivals as u64),
            with_commas(self.answers_per_second.round() as u64),
            with_commas(self.retries),
        )?;
        writeln!(out, "  orders    {} promised", with_commas(self.orders as u64))?;
        if let Some(Lag { p99_ms, longest_ms, own_p99_ms, own_longest_ms, .. }) = &self.lag {
            writeln!(
                out,
                "  schedule  p99 {p99_ms:.1} ms and longest {longest_ms:.1} ms behind, of which the generator's own \
                 {own_p99_ms:.1} ms and {own_longest_ms:.1} ms"
            )?;
        }
        self.write_warnings(out)
    }

    /// Counts of faults that must never happen, and whether the crowd was sent as planned.
    fn write_warnings(&self, out: &mut String) -> fmt::Result {
        for (number, problem) in [
            (self.accepted.len().saturating_sub(self.orders) as u64, "answers promise an order of another buyer"),
            (self.wrongly_accepted, "forged tokens, unknown sales or early clicks were accepted"),
            (self.unanswered as u64, "buyers never had a definite answer"),
        ] {
            if number > 0 {
                writeln!(out, "  WARNING   {} {problem}", with_commas(number))?;
            }
        }
        // In a long rush, the first second may be late and the whole in time.
        let lags = [("", &self.lag), (" of the first second", &self.first_second_lag)];
        let behind = lags.into_iter().find_map(|(of, lag)| Some((of, lag.as_ref().filter(|lag| lag.fell_behind)?)));
        let Some((of, lag)) = behind else { return Ok(()) };
        let (late, cause) = (with_commas(lag.late), lag.cause());
        writeln!(
            out,
            "  WARNING   {late} arrivals{of} were sent more than {LATE_MS} ms behind schedule, because {cause}. Latencies \
             count from the schedule and include it"
        )
    }

    /// How the buyers were spread over time.
    fn pace(&self) -> String {
        match self.shape {
            Shape::Rush => format!(
                "{:.0} % waiting for the start and a long tail over {:.1} s",
                WAITING_SHARE * 100.0,
                self.length_s
            ),
            Shape::Even => format!("{} buyers a second", with_commas(self.rate_per_second.round() as u64)),
        }
    }

    fn write_answers(&self, out: &mut String) -> fmt::Result {
        write!(out, "\n{:LABEL_WIDTH$}{:>12}", "answer", "rush")?;
        self.counts_by_role.keys().try_for_each(|role| write!(out, "{:>12}", role.heading()))?;
        writeln!(out)?;
        let labels: BTreeSet<&String> = self.counts_by_role.values().flat_map(BTreeMap::keys).collect();
        for label in labels {
            write!(out, "  {label:<width$}{:>12}", or_dot(self.counts.get(label).copied()), width = LABEL_WIDTH - 2)?;
            self.counts_by_role
                .values()
                .try_for_each(|counts| write!(out, "{:>12}", or_dot(counts.get(label).copied())))?;
            writeln!(out)?;
        }
        Ok(())
    }

    fn write_latencies(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "\nlatency in ms, from the scheduled arrival to the last answer")?;
        write!(out, "{:LABEL_WIDTH$}", "")?;
        ["arrivals", "p50", "p90", "p99", "p99.9", "max"].iter().try_for_each(|head| write!(out, "{head:>10}"))?;
        writeln!(out)?;
        let groups = [("all", &self.all), ("accepted", &self.accepted_only), ("first second", &self.first_second)];
        for (name, latency) in groups {
            let Some(Latency { arrivals, p50_ms, p90_ms, p99_ms, p99_9_ms, max_ms }) = latency else { continue };
            write!(out, "  {name:<width$}{:>10}", with_commas(*arrivals), width = LABEL_WIDTH - 2)?;
            for value_ms in [p50_ms, p90_ms, p99_ms, p99_9_ms, max_ms] {
                write!(out, "{value_ms:>10.1}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn write_timeline(&self, out: &mut String) -> fmt::Result {
        if self.timeline.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "\ntimeline, {} ms a column; each row has a scale of its own, its peak at the right",
            self.bucket_ms
        )?;
        let row = |of: fn(&Bucket) -> u64| self.timeline.iter().map(of).collect::<Vec<u64>>();
        let rows = [
            ("sent", row(|bucket| bucket.sent)),
            ("accepted", row(|bucket| bucket.accepted)),
            ("orders so far", row(|bucket| bucket.orders_so_far)),
            ("stock left", row(|bucket| bucket.stock_left.unwrap_or(0))),
            ("sold out", row(|bucket| bucket.sold_out)),
            ("refused", row(|bucket| bucket.refused)),
            ("failed", row(|bucket| bucket.failed)),
        ];
        for (name, values) in rows {
            let peak = values.iter().copied().max().unwrap_or(0);
            if peak > 0 {
                let bars: String = values.iter().map(|value| bar(*value, peak)).collect();
                writeln!(out, "  {name:<17}{bars}  {}", with_commas(peak))?;
            }
        }
        Ok(())
    }
}

impl Role {
    /// The heading of the role's column or row.
    fn heading(self) -> &'static str {
        match self {
            Self::Buyer => "buyers",
            Self::SecondClick => "2nd clicks",
            Self::UnknownSale => "no sale",
            Self::ForgedToken => "forged",
            Self::Bot => "bots",
            Self::EarlyClick => "too early",
        }
    }
}

/// A number, or a dot if there is none.
fn or_dot(number: Option<u64>) -> String {
    number.map_or_else(|| "·".to_owned(), with_commas)
}

/// Groups the digits: 1234567 as 1,234,567.
pub(crate) fn with_commas(number: u64) -> String {
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

/// A column of a bar chart: blank for 0, and at least the lowest block for any other value.
fn bar(value: u64, peak: u64) -> char {
    let height = (value * HEIGHTS.len() as u64).div_ceil(peak.max(1)) as usize;
    height.checked_sub(1).map_or(' ', |height| HEIGHTS[height.min(HEIGHTS.len() - 1)])
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn the_text_names_all_figures() {
        let text = report(|_| {}).render_text();
        for part in [
            "3 buyers and 1 bots",
            "409 sold-out",
            "no answer: time-out",
            "from the scheduled arrival",
            "first second",
            "25 ms a column",
            "1 (33.3 %) bots",
            "stock left",
            "p99 0.0 ms and longest 0.0 ms behind, of which the generator's own 0.0 ms and 0.0 ms",
            "1 buyers never had a definite answer",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        let picture: String = [0, 1, 500, 1_000].map(|value| bar(value, 1_000)).iter().collect();
        assert_eq!(picture, " ▁▄█", "the smallest value has a bar");
        assert_eq!([7, 1_000, 1_234_567].map(with_commas), ["7", "1,000", "1,234,567"]);
    }
}
