//! The report as text for a terminal.

use std::fmt::{self, Write};

use super::plan::Role;
use super::report::{MeasuredFrom, Report};
use super::shape::{Shape, WAITING_SHARE};
use super::timeline::{Bucket, Latency};

const LABEL_WIDTH: usize = 28;
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

impl Report {
    /// A summary of some thirty lines, to be read by a person.
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
            "  crowd     {} buyers and {} bots over {} connections, {}",
            grouped(self.buyers as u64),
            grouped(self.bots as u64),
            grouped(self.connections as u64),
            self.pace(),
        )?;
        let mixed: Vec<String> = self.mixed_in().iter().map(|(number, what)| format!("{number} {what}")).collect();
        writeln!(out, "  mixed in  {}", mixed.join(", "))?;
        writeln!(
            out,
            "  answers   {} to {} arrivals in {seconds:.2} s, {} a second; {} retries",
            grouped(self.answers),
            grouped(self.arrivals as u64),
            grouped(self.answers_per_second.round() as u64),
            grouped(self.retries),
        )?;
        writeln!(out, "  orders    {} promised", grouped(self.orders as u64))?;
        if self.accepted.len() > self.orders {
            let twice = self.accepted.len() - self.orders;
            writeln!(
                out,
                "  WARNING   {} promises name an order that somebody else was promised",
                grouped(twice as u64)
            )?;
        }
        if self.wrongly_accepted > 0 {
            let what = "forged tokens, unknown sales or early clicks were accepted";
            writeln!(out, "  WARNING   {} {what}", grouped(self.wrongly_accepted))?;
        }
        if self.unanswered > 0 {
            writeln!(out, "  WARNING   {} buyers never had a definite answer", grouped(self.unanswered as u64))?;
        }
        Ok(())
    }

    /// How the buyers came.
    pub(super) fn pace(&self) -> String {
        let rate = self.rate_per_second.map(|rate| grouped(rate.round() as u64));
        match (self.shape, rate) {
            (Shape::Rush, _) => format!(
                "{:.0} % waiting for the start and a long tail over {} s",
                WAITING_SHARE * 100.0,
                self.rush_s.unwrap_or_default()
            ),
            (Shape::Even, Some(rate)) => format!("{rate} buyers a second"),
            (Shape::Even, None) => "as fast as the machine carries".to_owned(),
        }
    }

    /// What came besides, and its share of the buyers.
    pub(super) fn mixed_in(&self) -> Vec<(String, &'static str)> {
        let share = |number: usize| {
            let percent = 100.0 * number as f64 / self.buyers.max(1) as f64;
            format!("{} ({})", grouped(number as u64), format!("{percent:.1} %").replace(".0 %", " %"))
        };
        let early = match self.mix.early_clicks {
            0 => ("no".to_owned(), "early clicks"),
            early => (share(early), "early clicks"),
        };
        vec![
            early,
            (share(self.mix.second_clicks), "double clicks"),
            (share(self.mix.unknown_sales), "unknown sales"),
            (share(self.mix.forged_tokens), "forged tokens"),
            (grouped(self.mix.bot_requests as u64), "requests of bots"),
        ]
    }

    fn write_answers(&self, out: &mut String) -> fmt::Result {
        let mut labels: Vec<&String> = self.counts_by_role.values().flat_map(|counts| counts.keys()).collect();
        labels.sort();
        labels.dedup();
        write!(out, "\n{:LABEL_WIDTH$}{:>12}", "answer", "rush")?;
        self.counts_by_role.keys().try_for_each(|role| write!(out, "{:>12}", heading(*role)))?;
        writeln!(out)?;
        for label in labels {
            write!(out, "  {label:<width$}{:>12}", cell(self.counts.get(label)), width = LABEL_WIDTH - 2)?;
            self.counts_by_role.values().try_for_each(|counts| write!(out, "{:>12}", cell(counts.get(label))))?;
            writeln!(out)?;
        }
        Ok(())
    }

    fn write_latencies(&self, out: &mut String) -> fmt::Result {
        let from = match self.measured_from {
            MeasuredFrom::ScheduledArrival => "from the scheduled arrival",
            MeasuredFrom::Send => "from the first send",
        };
        writeln!(out, "\nlatency in ms, {from} to the last answer")?;
        write!(out, "{:LABEL_WIDTH$}", "")?;
        ["arrivals", "p50", "p90", "p99", "p99.9", "max"].iter().try_for_each(|head| write!(out, "{head:>10}"))?;
        writeln!(out)?;
        let groups = [
            ("all", &self.all),
            ("accepted", &self.accepted_only),
            ("first second", &self.first_second),
            ("sent behind schedule", &self.send_lag),
        ];
        for (name, latency) in groups {
            if let Some(latency) = latency {
                write_latency(out, name, latency)?;
            }
        }
        Ok(())
    }

    fn write_timeline(&self, out: &mut String) -> fmt::Result {
        if self.timeline.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "\ntime line, {} ms a column; every row to its own scale, its peak at the right",
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
                let picture: String = values.iter().map(|value| bar(*value, peak)).collect();
                writeln!(out, "  {name:<17}{picture}  {}", grouped(peak))?;
            }
        }
        Ok(())
    }
}

fn write_latency(out: &mut String, name: &str, latency: &Latency) -> fmt::Result {
    write!(out, "  {name:<width$}{:>10}", grouped(latency.arrivals), width = LABEL_WIDTH - 2)?;
    let Latency { p50_ms, p90_ms, p99_ms, p99_9_ms, max_ms, .. } = latency;
    [p50_ms, p90_ms, p99_ms, p99_9_ms, max_ms].iter().try_for_each(|value_ms| write!(out, "{value_ms:>10.1}"))?;
    writeln!(out)
}

pub(super) fn heading(role: Role) -> &'static str {
    match role {
        Role::Buyer => "buyers",
        Role::SecondClick => "2nd clicks",
        Role::UnknownSale => "strays",
        Role::ForgedToken => "forged",
        Role::Bot => "bots",
        Role::EarlyClick => "too early",
    }
}

fn cell(number: Option<&u64>) -> String {
    number.map_or_else(|| "·".to_owned(), |number| grouped(*number))
}

/// A column of the picture: blank for nothing, and at least the lowest block for anything.
fn bar(value: u64, peak: u64) -> char {
    let height = (value * HEIGHTS.len() as u64).div_ceil(peak.max(1)) as usize;
    height.checked_sub(1).map_or(' ', |height| HEIGHTS[height.min(HEIGHTS.len() - 1)])
}

/// 1234567 as 1,234,567.
pub fn grouped(number: u64) -> String {
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
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn the_text_names_what_happened() {
        let text = report().render_text();
        for part in [
            "3 buyers and 1 bots",
            "409 sold-out",
            "no answer: time-out",
            "from the scheduled arrival",
            "first second",
            "10 ms a column",
            "1 requests of bots",
            "stock left",
            "1 buyers never had a definite answer",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }

    #[test]
    fn bars_show_even_the_smallest() {
        let picture: String = [0, 1, 500, 1_000].map(|value| bar(value, 1_000)).iter().collect();
        assert_eq!(picture, " ▁▄█");
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([7, 1_000, 1_234_567].map(grouped), ["7", "1,000", "1,234,567"]);
    }
}
