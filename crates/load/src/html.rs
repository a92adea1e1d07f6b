//! The report as one HTML file that needs nothing but itself.

use std::fmt::{self, Display, Write};

use super::charts::{self, INKS, Ink, Picture};
use super::render::{grouped, heading};
use super::report::{MeasuredFrom, Report};
use super::timeline::Latency;

/// What the auditor found after the rush, in words: the caller's, since the load knows nothing but HTTP.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    pub held: bool,
    pub facts: Vec<(&'static str, String)>,
    pub problems: Vec<String>,
}

const STYLE: &str = include_str!("report.css");

impl Report {
    pub fn render_html(&self, verdict: &Verdict) -> String {
        let mut page = String::with_capacity(256 * 1024);
        // Writing to a string does not fail.
        let _ = self.write_page(&mut page, verdict);
        page
    }

    fn write_page(&self, out: &mut String, verdict: &Verdict) -> fmt::Result {
        let title = format!("Rush on sale {}", self.sale_id);
        writeln!(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>")?;
        writeln!(out, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>")?;
        writeln!(out, "<meta name=\"color-scheme\" content=\"light dark\"/>\n<title>{title}</title>")?;
        writeln!(out, "<style>\n{}{STYLE}</style>\n</head>\n<body>\n<main>", colours()?)?;
        writeln!(out, "<header>\n<p class=\"kind\">Seckill, report of a rush</p>\n<h1>{title}</h1>")?;
        let began = self.began_at.map(|at| format!(", {}", at.format("%-d %B %Y, %H:%M:%S UTC"))).unwrap_or_default();
        writeln!(out, "<p class=\"quiet\">{}{began}</p>\n</header>", escaped(&self.base))?;
        self.write_tiles(out)?;
        self.write_warnings(out)?;
        self.write_crowd(out)?;
        self.write_pictures(out)?;
        self.write_latencies_table(out)?;
        self.write_answers_table(out)?;
        self.write_numbers(out)?;
        write_verdict(out, verdict)?;
        writeln!(out, "</main>\n</body>\n</html>")
    }

    fn write_tiles(&self, out: &mut String) -> fmt::Result {
        let stock =
            self.stock.map_or_else(|| "orders promised".to_owned(), |n| format!("orders, of {} in stock", grouped(n)));
        let p99 =
            |latency: &Option<Latency>| latency.as_ref().map_or("-".to_owned(), |l| format!("{} ms", tenths(l.p99_ms)));
        let tiles = [
            (grouped(self.buyers as u64), "buyers".to_owned()),
            (grouped(self.orders as u64), stock),
            (grouped(self.answers_per_second.round() as u64), "answers a second".to_owned()),
            (p99(&self.first_second), "99 % answered in, first second".to_owned()),
            (p99(&self.all), "99 % answered in, whole rush".to_owned()),
            (format!("{} s", tenths(self.duration_ms as f64 / 1_000.0)), "to the last answer".to_owned()),
        ];
        writeln!(out, "<div class=\"tiles\">")?;
        for (number, what) in tiles {
            writeln!(out, "<div><b>{number}</b><span>{what}</span></div>")?;
        }
        writeln!(out, "</div>")
    }

    fn write_warnings(&self, out: &mut String) -> fmt::Result {
        let shared = self.accepted.len().saturating_sub(self.orders) as u64;
        let warnings = [
            (shared, "promises name an order that somebody else was promised"),
            (self.wrongly_accepted, "forged tokens, unknown sales or early clicks were accepted"),
            (self.unanswered as u64, "buyers never had a definite answer"),
        ];
        for (number, what) in warnings.into_iter().filter(|(number, _)| *number > 0) {
            writeln!(out, "<p class=\"warning\"><b>{}</b> {what}</p>", grouped(number))?;
        }
        Ok(())
    }

    fn write_crowd(&self, out: &mut String) -> fmt::Result {
        let mixed = self.mixed_in().into_iter().map(|(number, what)| format!("{number} {what}"));
        let facts = [
            ("Buyers", format!("{}, {}", grouped(self.buyers as u64), self.pace())),
            ("Bots", format!("{}, each with one token", grouped(self.bots as u64))),
            ("Mixed in, of the buyers", mixed.collect::<Vec<_>>().join(", ")),
            (
                "Requests",
                format!(
                    "{} arrivals, {} answers; {} asked again because the service could not say",
                    grouped(self.arrivals as u64),
                    grouped(self.answers),
                    grouped(self.retries)
                ),
            ),
            ("Connections", grouped(self.connections as u64)),
            ("Seed", self.seed.to_string()),
        ];
        writeln!(out, "<section>\n<h2>Who came</h2>")?;
        write_facts(out, facts)?;
        writeln!(out, "</section>")
    }

    fn write_pictures(&self, out: &mut String) -> fmt::Result {
        let paced = self.measured_from == MeasuredFrom::ScheduledArrival;
        let kinds = [
            (if paced { "arrivals" } else { "requests sent" }, &charts::ARRIVED),
            ("accepted", &charts::ACCEPTED),
            ("sold out", &charts::SOLD_OUT),
            ("refused otherwise", &charts::REFUSED),
            ("failed", &charts::FAILED),
        ];
        let percentiles = [("half", &charts::HALF), ("99 % within", &charts::MOST), ("the slowest", &charts::SLOWEST)];
        let (fine, fine_ms) = (&self.first_second_timeline, self.first_second_bucket_ms);
        let end_ms = |buckets: usize, bucket_ms: u64| buckets as u64 * bucket_ms;

        let note = format!("Per second, in steps of {} ms.", grouped(self.bucket_ms));
        let drawn = charts::traffic(&self.timeline, self.bucket_ms, paced);
        write_picture(out, "Arrivals and answers", &note, &kinds, drawn)?;

        let (name, note) = match self.stock {
            Some(stock) if self.orders as u64 > stock => (
                "Stock left",
                "By the promises heard. More were made than the stock was at the beginning: units came back or were added, \
                 and the auditor below says whether rightly.",
            ),
            Some(_) => {
                ("Stock left", "By the promises heard, each order counted once. The picture ends soon after the last.")
            }
            None => ("Orders promised", "Each counted once; the stock is not known."),
        };
        let drawn = charts::stock(fine, fine_ms, &self.timeline, self.bucket_ms);
        write_picture(out, name, note, &[], drawn)?;

        let drawn = charts::traffic(fine, fine_ms, paced);
        let note = format!("Per second, in steps of {fine_ms} ms.");
        write_picture(out, "The first second: arrivals and answers", &note, &kinds, drawn)?;
        let drawn = charts::latency(&self.first_second_latency_timeline, fine_ms, end_ms(fine.len(), fine_ms));
        let note = format!("By the time of arrival, {}.", self.from());
        write_picture(out, "The first second: latency", &note, &percentiles, drawn)?;

        let end_ms = end_ms(self.timeline.len(), self.bucket_ms);
        let drawn = charts::latency(&self.latency_timeline, self.bucket_ms, end_ms);
        write_picture(out, "Latency", &note, &percentiles, drawn)?;
        let groups = [("whole rush", &charts::MOST), ("first second", &charts::FIRST)];
        let note = "Share of the arrivals that had their last answer within so long, and not within the step before.";
        write_picture(out, "How long they waited", note, &groups, charts::histogram(&self.latency_histogram))
    }

    fn from(&self) -> &'static str {
        match self.measured_from {
            MeasuredFrom::ScheduledArrival => "from the scheduled arrival to the last answer, waiting in line included",
            MeasuredFrom::Send => "from the first send to the last answer",
        }
    }

    fn write_latencies_table(&self, out: &mut String) -> fmt::Result {
        let mut groups = vec![
            ("all", self.all.as_ref()),
            ("first second", self.first_second.as_ref()),
            ("accepted", self.accepted_only.as_ref()),
        ];
        groups.extend(self.by_role.iter().map(|(role, latency)| (heading(*role), Some(latency))));
        groups.push(("sent behind schedule", self.send_lag.as_ref()));

        writeln!(out, "<section>\n<h2>Latency in milliseconds</h2>\n<p class=\"quiet\">Counted {}.</p>", self.from())?;
        writeln!(out, "<div class=\"scroll\"><table>\n<thead><tr><th></th>")?;
        for head in ["arrivals", "p50", "p90", "p99", "p99.9", "max"] {
            write!(out, "<th>{head}</th>")?;
        }
        writeln!(out, "</tr></thead>\n<tbody>")?;
        for (name, latency) in groups {
            let Some(Latency { arrivals, p50_ms, p90_ms, p99_ms, p99_9_ms, max_ms }) = latency else { continue };
            write!(out, "<tr><th>{name}</th><td>{}</td>", grouped(*arrivals))?;
            for value_ms in [p50_ms, p90_ms, p99_ms, p99_9_ms, max_ms] {
                write!(out, "<td>{}</td>", tenths(*value_ms))?;
            }
            writeln!(out, "</tr>")?;
        }
        writeln!(out, "</tbody></table></div>\n</section>")
    }

    fn write_answers_table(&self, out: &mut String) -> fmt::Result {
        let mut labels: Vec<&String> = self.counts_by_role.values().flat_map(|counts| counts.keys()).collect();
        labels.sort();
        labels.dedup();
        let number =
            |label: &String| -> u64 { self.counts_by_role.values().filter_map(|counts| counts.get(label)).sum() };
        let most = labels.iter().map(|label| number(label)).max().unwrap_or(1);

        writeln!(out, "<section>\n<h2>Answers</h2>\n<p class=\"quiet\">By code, and by who asked.</p>")?;
        writeln!(out, "<div class=\"scroll\"><table>\n<thead><tr><th></th><th>all</th><th class=\"bar\"></th>")?;
        self.counts_by_role.keys().try_for_each(|role| write!(out, "<th>{}</th>", heading(*role)))?;
        writeln!(out, "</tr></thead>\n<tbody>")?;
        for label in labels {
            let all = number(label);
            let bar =
                format!("<i class=\"{}\" style=\"width:{:.1}%\"></i>", kind(label), 100.0 * all as f64 / most as f64);
            write!(out, "<tr><th>{}</th><td>{}</td><td class=\"bar\">{bar}</td>", escaped(label), grouped(all))?;
            for counts in self.counts_by_role.values() {
                write!(
                    out,
                    "<td>{}</td>",
                    counts.get(label).map_or_else(|| "·".to_owned(), |number| grouped(*number))
                )?;
            }
            writeln!(out, "</tr>")?;
        }
        writeln!(out, "</tbody></table></div>\n</section>")
    }

    fn write_numbers(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "<details>\n<summary>The numbers behind the pictures</summary>\n<div class=\"scroll\"><table>")?;
        let heads = ["from, s", "arrived", "sent", "accepted", "sold out", "refused", "failed", "orders", "left"];
        write!(out, "<thead><tr>")?;
        heads.iter().try_for_each(|head| write!(out, "<th>{head}</th>"))?;
        writeln!(out, "</tr></thead>\n<tbody>")?;
        for bucket in &self.timeline {
            write!(out, "<tr><th>{:.2}</th>", bucket.from_ms as f64 / 1_000.0)?;
            let cells = [bucket.arrived, bucket.sent, bucket.accepted, bucket.sold_out, bucket.refused, bucket.failed];
            cells.iter().try_for_each(|number| write!(out, "<td>{}</td>", grouped(*number)))?;
            let left = bucket.stock_left.map_or_else(|| "·".to_owned(), grouped);
            writeln!(out, "<td>{}</td><td>{left}</td></tr>", grouped(bucket.orders_so_far))?;
        }
        writeln!(out, "</tbody></table></div>\n</details>")
    }
}

fn write_picture<E: Display>(
    out: &mut String,
    name: &str,
    note: &str,
    legend: &[(&str, &Ink)],
    drawn: Result<Picture, E>,
) -> fmt::Result {
    writeln!(out, "<section>\n<h2>{name}</h2>\n<p class=\"quiet\">{note}</p>")?;
    if !legend.is_empty() {
        writeln!(out, "<ul class=\"legend\">")?;
        for (what, ink) in legend {
            writeln!(out, "<li><i class=\"{}\"></i>{what}</li>", ink.name)?;
        }
        writeln!(out, "</ul>")?;
    }
    match drawn {
        Ok(Picture { wide, narrow }) => {
            for (class, svg) in [("wide", wide), ("narrow", narrow)] {
                writeln!(out, "<div class=\"{class}\" role=\"img\" aria-label=\"{name}\">\n{svg}</div>")?;
            }
        }
        Err(error) => writeln!(out, "<p class=\"warning\">Not drawn: {}</p>", escaped(&error.to_string()))?,
    }
    writeln!(out, "</section>")
}

fn write_facts<'a>(out: &mut String, facts: impl IntoIterator<Item = (&'a str, String)>) -> fmt::Result {
    writeln!(out, "<dl>")?;
    for (name, value) in facts {
        writeln!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(&value))?;
    }
    writeln!(out, "</dl>")
}

fn write_verdict(out: &mut String, verdict: &Verdict) -> fmt::Result {
    let (class, word) = if verdict.held { ("held", "held") } else { ("broken", "broken") };
    writeln!(out, "<section class=\"verdict {class}\">\n<h2>The auditor's verdict: <b>{word}</b></h2>")?;
    write_facts(out, verdict.facts.iter().map(|(name, value)| (*name, value.clone())))?;
    if !verdict.problems.is_empty() {
        writeln!(out, "<ul>")?;
        verdict.problems.iter().try_for_each(|problem| writeln!(out, "<li>{}</li>", escaped(problem)))?;
        writeln!(out, "</ul>")?;
    }
    writeln!(out, "</section>")
}

/// The colours as variables for the page, and exchanged in the pictures where the scheme is dark.
fn colours() -> Result<String, fmt::Error> {
    let hex = |colour: plotters::style::RGBColor| format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2);
    let mut css = String::new();
    for ink in INKS {
        writeln!(css, ":root{{--{}:{}}} i.{0}{{background:var(--{0})}}", ink.name, hex(ink.light))?;
    }
    writeln!(css, "@media (prefers-color-scheme: dark) {{")?;
    for ink in INKS {
        let (light, dark) = (hex(ink.light), hex(ink.dark));
        writeln!(css, ":root{{--{}:{dark}}}", ink.name)?;
        writeln!(css, "svg [fill=\"{light}\"]{{fill:{dark}}} svg [stroke=\"{light}\"]{{stroke:{dark}}}")?;
    }
    writeln!(css, "}}")?;
    Ok(css)
}

/// The colour of an answer's bar, by its label in the counts.
fn kind(label: &str) -> &'static str {
    match label.split(' ').next() {
        Some("202") => charts::ACCEPTED.name,
        Some("409") if label == "409 sold-out" => charts::SOLD_OUT.name,
        Some(status) if status.starts_with('5') || status == "no" => charts::FAILED.name,
        _ => charts::REFUSED.name,
    }
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            _ => safe.push(character),
        }
    }
    safe
}

/// 1234.56 as 1,234.6.
fn tenths(number: f64) -> String {
    let tenths = (number * 10.0).round() as u64;
    format!("{}.{}", grouped(tenths / 10), tenths % 10)
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

    fn verdict() -> Verdict {
        Verdict {
            held: false,
            facts: vec![("Left", "1,000".to_owned())],
            problems: vec!["<script>alert('&')</script>".to_owned()],
        }
    }

    #[test]
    fn the_page_is_well_formed_and_self_contained() {
        let page = report().render_html(&verdict());
        assert_well_formed(&page);
        for outside in ["src=", "href=", "url(", "@import", "<script", "<link"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn what_others_wrote_is_escaped() {
        let mut report = report();
        report.base = "http://\"><b>".to_owned();
        report.counts_by_role.values_mut().for_each(|counts| {
            counts.insert("418 <i>&".to_owned(), 1);
        });
        let page = report.render_html(&verdict());
        for part in ["http://&quot;&gt;&lt;b&gt;", "418 &lt;i&gt;&amp;", "&lt;script&gt;alert(&#39;&amp;&#39;)"] {
            assert!(page.contains(part), "{part}");
        }
        assert_well_formed(&page);
    }

    #[test]
    fn the_page_tells_it_all_and_the_verdict_last() {
        let page = report().render_html(&verdict());
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
            "&lt;script&gt;",
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
