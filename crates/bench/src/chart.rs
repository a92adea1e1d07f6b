//! Charts in Mermaid, which code hosts draw.

use std::fmt;

/// Bars, and a line over them. Either may be empty.
pub struct Chart {
    pub title: String,
    pub x: Axis,
    /// What the values are.
    pub y: &'static str,
    pub bars: Vec<f64>,
    pub line: Vec<f64>,
}

/// The horizontal axis, with its title.
pub enum Axis {
    Names(&'static str, Vec<String>),
    /// From 0 to this number.
    Numbers(&'static str, f64),
}

impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = || self.bars.iter().chain(&self.line).copied().filter(|value| value.is_finite());
        let most = values().fold(0.0, f64::max);
        let digits = if most < 10.0 { 2 } else { 0 };
        writeln!(f, "```mermaid\nxychart-beta\n    title \"{}\"", self.title)?;
        match &self.x {
            Axis::Names(title, names) => writeln!(f, "    x-axis \"{title}\" [\"{}\"]", names.join("\", \""))?,
            Axis::Numbers(title, to) => writeln!(f, "    x-axis \"{title}\" 0 --> {to:.1}")?,
        }
        // Without a range the axis would begin at the least value, whose bar would have no height.
        writeln!(f, "    y-axis \"{}\" 0 --> {:.digits$}", self.y, (most * 1.1).max(0.1))?;
        for (kind, values) in [("bar", &self.bars), ("line", &self.line)] {
            if !values.is_empty() {
                // Mermaid has no gaps: what was not measured is 0.
                let values = values.iter().map(|value| if value.is_finite() { *value } else { 0.0 });
                let values: Vec<String> = values.map(|value| format!("{value:.digits$}")).collect();
                writeln!(f, "    {kind} [{}]", values.join(", "))?;
            }
        }
        writeln!(f, "```")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chart of shares has two decimals and begins at 0; what was not measured is 0.
    #[test]
    fn a_chart_is_mermaid() {
        let chart = Chart {
            title: "Shares".to_owned(),
            x: Axis::Names("answer", vec!["hello".to_owned(), "bought".to_owned()]),
            y: "of hello-world",
            bars: vec![1.0, 0.25],
            line: vec![1.0, f64::NAN],
        };
        let expected = "```mermaid\nxychart-beta\n    title \"Shares\"\n    x-axis \"answer\" [\"hello\", \"bought\"]\n    \
                        y-axis \"of hello-world\" 0 --> 1.10\n    bar [1.00, 0.25]\n    line [1.00, 0.00]\n```\n";
        assert_eq!(chart.to_string(), expected);
        let rates = Chart { x: Axis::Numbers("seconds", 2.0), bars: vec![1200.4], line: Vec::new(), ..chart };
        let lines: Vec<String> = rates.to_string().lines().skip(3).map(|line| line.trim().to_owned()).collect();
        let expected = ["x-axis \"seconds\" 0 --> 2.0", "y-axis \"of hello-world\" 0 --> 1320", "bar [1200]", "```"];
        assert_eq!(lines, expected);
    }
}
