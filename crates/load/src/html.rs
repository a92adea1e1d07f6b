//! The report as one HTML page that needs no other file; the page itself is `templates/report.html`.

use std::convert::Infallible;
use std::iter::once;

use askama::Template;
use plotters::style::RGBColor;

use super::charts::{self, COLOURS, Colour, DrawError, Picture};
use super::numbers::{or_dot, with_commas};
use super::report::{MeasuredFrom, Report};
use super::statistics::Latency;

/// The findings of the audit after the rush, in words. The caller writes it, because this crate speaks HTTP only.
#[derive(Debug, Clone, Default)]
pub struct AuditSummary {
    pub held: bool,
    /// The figures that were compared: name and value.
    pub facts: Vec<(&'static str, String)>,
    pub problems: Vec<String>,
}

impl Report {
    /// The page, with charts and the audit's verdict.
    ///
    /// # Errors
    /// The template could not be rendered.
    pub fn render_html(&self, audit: &AuditSummary) -> Result<String, askama::Error> {
        ReportPage { report: self, audit, colours: &COLOURS }.render()
    }
}

#[derive(Template)]
#[template(path = "report.html")]
struct ReportPage<'a> {
    report: &'a Report,
    audit: &'a AuditSummary,
    colours: &'a [&'a Colour],
}

struct Chart {
    title: &'static str,
    note: String,
    legend: Vec<(&'static str, &'static Colour)>,
    drawn: Result<Picture, DrawError>,
}

/// One answer's row: how often it was given, in all and by role.
struct AnswerRow<'a> {
    label: &'a str,
    total: u64,
    /// Class of the bar, and its width relative to the most frequent answer.
    colour: &'static str,
    width_percent: f64,
    by_role: Vec<String>,
}

impl ReportPage<'_> {
    fn tiles(&self) -> [(String, String); 6] {
        let report = self.report;
        let p99 =
            |latency: &Option<Latency>| latency.as_ref().map_or("-".to_owned(), |l| format!("{} ms", tenths(l.p99_ms)));
        let orders = match report.stock {
            Some(stock) => format!("orders, of {} in stock", with_commas(stock)),
            None => "orders promised".to_owned(),
        };
        [
            (with_commas(report.buyers as u64), "buyers".to_owned()),
            (with_commas(report.orders as u64), orders),
            (with_commas(report.answers_per_second.round() as u64), "answers a second".to_owned()),
            (p99(&report.first_second), "99 % answered in, first second".to_owned()),
            (p99(&report.all), "99 % answered in, whole rush".to_owned()),
            (format!("{} s", tenths(report.duration_ms as f64 / 1_000.0)), "to the last answer".to_owned()),
        ]
    }

    fn crowd(&self) -> [(&'static str, String); 8] {
        let report = self.report;
        let mixed: Vec<_> = report.mixed_in().into_iter().map(|(number, kind)| format!("{number} {kind}")).collect();
        let requests = format!(
            "{} arrivals, {} answers; {} retries, because the service could not answer",
            with_commas(report.arrivals as u64),
            with_commas(report.answers),
            with_commas(report.retries)
        );
        [
            ("Buyers", format!("{}, {}", with_commas(report.buyers as u64), report.pace())),
            ("Bots", format!("{}, each with one token", with_commas(report.bots as u64))),
            ("Mixed in, of the buyers", mixed.join(", ")),
            ("Requests", requests),
            ("Connections", with_commas(report.connections as u64)),
            ("Schedule", report.lag.as_ref().map_or("all were due at once".to_owned(), ToString::to_string)),
            ("Orders followed", report.watched.as_ref().map_or("none".to_owned(), ToString::to_string)),
            ("Seed", report.seed.to_string()),
        ]
    }

    fn charts(&self) -> [Chart; 6] {
        let report = self.report;
        let paced = report.measured_from == MeasuredFrom::ScheduledArrival;
        let answers = vec![
            (if paced { "arrivals" } else { "requests sent" }, &charts::ARRIVED),
            ("accepted", &charts::ACCEPTED),
            ("sold out", &charts::SOLD_OUT),
            ("refused otherwise", &charts::REFUSED),
            ("failed", &charts::FAILED),
        ];
        let percentiles =
            vec![("median", &charts::MEDIAN), ("99 % within", &charts::P99), ("the slowest", &charts::SLOWEST)];
        let groups = vec![("whole rush", &charts::P99), ("first second", &charts::FIRST_SECOND)];
        let (fine, fine_ms) = (&report.first_second_timeline, report.first_second_bucket_ms);
        let (coarse, coarse_ms) = (&report.timeline, report.bucket_ms);
        let by_arrival = format!("By the time of arrival, {}.", self.measured_from());
        [
            Chart {
                title: "Arrivals and answers",
                note: format!("Per second, in steps of {} ms.", with_commas(coarse_ms)),
                legend: answers.clone(),
                drawn: charts::traffic(coarse, coarse_ms, paced),
            },
            self.stock_chart(),
            Chart {
                title: "The first second: arrivals and answers",
                note: format!("Per second, in steps of {fine_ms} ms."),
                legend: answers,
                drawn: charts::traffic(fine, fine_ms, paced),
            },
            Chart {
                title: "The first second: latency",
                note: by_arrival.clone(),
                legend: percentiles.clone(),
                drawn: charts::latency(&report.first_second_latency_timeline, fine_ms, fine.len() as u64 * fine_ms),
            },
            Chart {
                title: "Latency",
                note: by_arrival,
                legend: percentiles,
                drawn: charts::latency(&report.latency_timeline, coarse_ms, coarse.len() as u64 * coarse_ms),
            },
            Chart {
                title: "How long they waited",
                note: "Share of the arrivals whose last answer took this long, and longer than the step before."
                    .to_owned(),
                legend: groups,
                drawn: charts::histogram(&report.latency_histogram),
            },
        ]
    }

    fn stock_chart(&self) -> Chart {
        let report = self.report;
        let (title, note) = match report.stock {
            Some(stock) if report.orders as u64 > stock => (
                "Stock left",
                "By the orders promised. More were promised than the stock was at the beginning: units came back or were \
                 added. The audit below says whether that is right.",
            ),
            Some(_) => ("Stock left", "By the orders promised, each counted once. The chart ends soon after the last."),
            None => ("Orders promised", "Each counted once; the stock is not known."),
        };
        let (fine, fine_ms) = (&report.first_second_timeline, report.first_second_bucket_ms);
        let drawn = charts::stock(fine, fine_ms, &report.timeline, report.bucket_ms);
        Chart { title, note: note.to_owned(), legend: Vec::new(), drawn }
    }

    fn measured_from(&self) -> &'static str {
        match self.report.measured_from {
            MeasuredFrom::ScheduledArrival => {
                "from the scheduled arrival to the last answer, including the wait for a connection"
            }
            MeasuredFrom::Send => "from the first send to the last answer",
        }
    }

    fn latencies(&self) -> impl Iterator<Item = (&'static str, &Latency)> {
        let report = self.report;
        let all = [
            ("all", report.all.as_ref()),
            ("first second", report.first_second.as_ref()),
            ("accepted", report.accepted_only.as_ref()),
        ];
        let by_role = report.by_role.iter().map(|(role, latency)| (role.heading(), Some(latency)));
        let rows = all.into_iter().chain(by_role).chain(once(("sent behind schedule", report.send_lag.as_ref())));
        rows.filter_map(|(name, latency)| Some((name, latency?)))
    }

    fn answers(&self) -> Vec<AnswerRow<'_>> {
        let by_role = &self.report.counts_by_role;
        let total = |label: &str| -> u64 { by_role.values().filter_map(|counts| counts.get(label)).sum() };
        let labels = self.report.labels();
        let largest = labels.iter().map(|label| total(label)).max().unwrap_or(0).max(1);
        let row = |label| AnswerRow {
            label,
            total: total(label),
            colour: colour_of(label),
            width_percent: 100.0 * total(label) as f64 / largest as f64,
            by_role: by_role.values().map(|counts| or_dot(counts.get(label).copied())).collect(),
        };
        labels.into_iter().map(row).collect()
    }

    fn verdict(&self) -> &'static str {
        if self.audit.held { "held" } else { "broken" }
    }
}

/// The template's filters.
mod filters {
    use super::*;

    #[askama::filter_fn]
    pub fn commas(number: &u64, _: &dyn askama::Values) -> Result<String, Infallible> {
        Ok(with_commas(*number))
    }

    #[askama::filter_fn]
    pub fn tenths(number: &f64, _: &dyn askama::Values) -> Result<String, Infallible> {
        Ok(super::tenths(*number))
    }

    #[askama::filter_fn]
    pub fn hex(colour: &RGBColor, _: &dyn askama::Values) -> Result<String, Infallible> {
        Ok(format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2))
    }
}

/// The colour of an answer's bar, by its label in the counts.
fn colour_of(label: &str) -> &'static str {
    match label.split(' ').next() {
        Some("202") => charts::ACCEPTED.name,
        Some("409") if label == "409 sold-out" => charts::SOLD_OUT.name,
        Some(status) if status.starts_with('5') || status == "no" => charts::FAILED.name,
        _ => charts::REFUSED.name,
    }
}

/// 1234.56 as 1,234.6.
fn tenths(number: f64) -> String {
    let tenths = (number * 10.0).round() as u64;
    format!("{}.{}", with_commas(tenths / 10), tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    /// After the head, every tag that is opened is closed, in order, and every quote as well.
    fn assert_well_formed(page: &str) {
        let mut open = Vec::new();
        for piece in page[page.find("<body>").unwrap()..].split('<').skip(1) {
            let (tag, text) = piece.split_once('>').unwrap_or_else(|| panic!("no end of <{piece}"));
            assert!(!text.contains('>'), "a bare > in {text:?}");
            assert!(tag.matches('"').count().is_multiple_of(2), "quotes in <{tag}>");
            match tag.strip_prefix('/') {
                Some("html") if open.is_empty() => {}
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if tag.ends_with('/') => {}
                None => open.push(tag.split_whitespace().next().unwrap()),
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    fn broken() -> AuditSummary {
        AuditSummary {
            held: false,
            facts: vec![("Left", "1,000".to_owned())],
            problems: vec!["<script>alert('&')</script>".to_owned()],
        }
    }

    #[test]
    fn the_page_is_well_formed_and_self_contained() {
        let page = report().render_html(&broken()).unwrap();
        assert_well_formed(&page);
        for outside in ["src=", "href=", "url(", "@import", "<script", "<link"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn text_from_outside_is_escaped() {
        let mut report = report();
        report.base = "http://\"><b>".to_owned();
        report.counts_by_role.values_mut().for_each(|counts| {
            counts.insert("418 <i>&".to_owned(), 1);
        });
        let page = report.render_html(&broken()).unwrap();
        for part in ["http://&#34;&#62;&#60;b&#62;", "418 &#60;i&#62;&#38;", "&#60;script&#62;alert(&#39;&#38;&#39;)"] {
            assert!(page.contains(part), "{part}");
        }
        assert_well_formed(&page);
    }

    #[test]
    fn the_page_has_all_parts_in_order_and_the_verdict_last() {
        let page = report().render_html(&broken()).unwrap();
        let mut from = 0;
        for part in [
            "Rush on sale 1",
            "orders, of 5 in stock",
            "Who came",
            "Arrivals and answers",
            "Stock left",
            "The first second",
            "Latency in milliseconds",
            "429 quota-exceeded",
            "The auditor's verdict: <b>broken</b>",
            "&#60;script&#62;",
        ] {
            from += page[from..].find(part).unwrap_or_else(|| panic!("{part:?} is missing, or not where it belongs"));
        }
        assert!(page[from..].matches("<section").count() == 0);
    }

    #[test]
    fn numbers_are_grouped_with_their_tenths() {
        assert_eq!([0.04, 0.25, 999.96, 1_234.56].map(tenths), ["0.0", "0.3", "1,000.0", "1,234.6"]);
    }
}
