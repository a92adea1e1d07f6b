//! The report as one HTML page that needs no other file: charts of the answers and the stock, the text, and the audit's verdict.

use std::io;

use plotters::prelude::*;

use super::measurements::{BUCKET_MS, Bucket};
use super::report::Report;
use super::text::with_commas;

/// A kind of answer: its name, its number in a bucket, and its colour.
type Kind = (&'static str, fn(&Bucket) -> u64, RGBColor);

const KINDS: [Kind; 4] = [
    ("accepted", |bucket| bucket.accepted, RGBColor(0x12, 0x92, 0x5F)),
    ("sold out", |bucket| bucket.sold_out, RGBColor(0xA9, 0xB4, 0xC6)),
    ("refused otherwise", |bucket| bucket.refused, RGBColor(0xE0, 0x9A, 0x2B)),
    ("failed", |bucket| bucket.failed, RGBColor(0xCF, 0x3A, 0x3A)),
];
const TEXT: RGBColor = RGBColor(0x5A, 0x64, 0x73);
const GRID: RGBColor = RGBColor(0xE8, 0xEB, 0xF0);
const ARRIVED: RGBColor = RGBColor(0x1B, 0x23, 0x33);
const STOCK: RGBColor = RGBColor(0x13, 0x92, 0x5E);
const STOCK_AREA: RGBColor = RGBColor(0xD5, 0xEB, 0xE2);
/// In pixels, as all sizes.
const SIZE: (u32, u32) = (960, 300);
/// Twelve on the page: plotters writes a smaller size than it is given.
const FONT_SIZE: f64 = 12.0 * 1.24;

const STYLE: &str = "body{max-width:960px;margin:2em auto;padding:0 1em;font-family:sans-serif;color:#1b2333}\
                     svg{width:100%;height:auto}pre{overflow-x:auto}i{font-style:normal}";

/// A chart could not be drawn.
pub type DrawError = DrawingAreaErrorKind<io::Error>;

/// A column: its lower left and upper right corner, in seconds and in units of the other axis, and its colour.
type Column = ([(f64, f64); 2], RGBColor);

impl Report {
    /// The page. `audit` is the verdict of the audit after the rush, in words.
    ///
    /// # Errors
    /// A chart could not be drawn.
    pub fn render_html(&self, audit: &str) -> Result<String, DrawError> {
        let title = format!("Rush on sale {}", self.sale_id);
        let legend =
            KINDS.map(|(name, _, RGBColor(r, g, b))| format!("<i style=\"color:rgb({r},{g},{b})\">■</i> {name}"));
        let legend = legend.join(", ");
        let mut charts = String::new();
        for (of, timeline, bucket_ms) in
            [("Whole rush", &self.timeline, self.bucket_ms), ("First second", &self.first_second_timeline, BUCKET_MS)]
        {
            let (traffic, stock) = (traffic(timeline, bucket_ms)?, stock(timeline, bucket_ms)?);
            let left = if self.stock.is_some() { "stock left, by the orders promised" } else { "orders promised" };
            charts += &format!(
                "<h2>{of}: arrivals and answers a second, in steps of {bucket_ms} ms</h2>\n<p>— arrivals, {legend}</p>\n\
                 {traffic}<h2>{of}: {left}</h2>\n{stock}"
            );
        }
        let (text, audit) = (escaped(&self.render_text()), escaped(audit));
        Ok(format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title}</title>\n\
             <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{charts}<pre>{text}</pre>\n\
             <h2>The auditor's verdict</h2>\n<pre>{audit}</pre>\n</body>\n</html>\n"
        ))
    }
}

/// Arrivals as a line, and answers by kind as stacked columns, both per second.
fn traffic(timeline: &[Bucket], bucket_ms: u64) -> Result<String, DrawError> {
    let per_second = |number: u64| number as f64 * 1_000.0 / bucket_ms as f64;
    let (mut columns, mut arrivals) = (Vec::new(), Vec::new());
    for bucket in timeline {
        let (from_s, to_s) = seconds(bucket, bucket_ms);
        let mut below = 0.0;
        for (_, number, colour) in KINDS {
            let above = below + per_second(number(bucket));
            columns.push(([(from_s, below), (to_s, above)], colour));
            below = above;
        }
        let arrived = per_second(bucket.arrived);
        arrivals.extend([(from_s, arrived), (to_s, arrived)]);
    }
    chart(&columns, arrivals, ARRIVED)
}

/// The stock left by the orders promised, or the number of these orders if the stock is not known.
fn stock(timeline: &[Bucket], bucket_ms: u64) -> Result<String, DrawError> {
    let value = |bucket: &Bucket| bucket.stock_left.unwrap_or(bucket.orders_so_far) as f64;
    let begin = timeline.first().and_then(|bucket| Some(bucket.stock_left? + bucket.orders_so_far)).unwrap_or(0);
    let mut line = vec![(0.0, begin as f64)];
    let mut columns = Vec::new();
    for bucket in timeline {
        let (from_s, to_s) = seconds(bucket, bucket_ms);
        columns.push(([(from_s, 0.0), (to_s, value(bucket))], STOCK_AREA));
        line.push((to_s, value(bucket)));
    }
    chart(&columns, line, STOCK)
}

/// When a bucket begins and ends.
fn seconds(bucket: &Bucket, bucket_ms: u64) -> (f64, f64) {
    (bucket.from_ms as f64 / 1_000.0, (bucket.from_ms + bucket_ms) as f64 / 1_000.0)
}

/// Columns and a line over time, as SVG.
fn chart(columns: &[Column], line: Vec<(f64, f64)>, colour: RGBColor) -> Result<String, DrawError> {
    let end_s = line.last().map_or(0.0, |(end_s, _)| *end_s).max(0.01);
    let values = line.iter().map(|(_, value)| *value).chain(columns.iter().map(|([_, (_, top)], _)| *top));
    let top = values.fold(1.0, f64::max) * 1.06;
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut builder = ChartBuilder::on(&canvas);
        builder.margin_top(8).margin_right(28).x_label_area_size(28).y_label_area_size(58);
        let mut chart = builder.build_cartesian_2d(0.0..end_s, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .max_light_lines(0)
            .bold_line_style(GRID)
            .label_style(("sans-serif", FONT_SIZE).into_font().color(&TEXT))
            .y_labels(5)
            .x_label_formatter(&|at_s| {
                format!("{at_s:.3}").trim_end_matches('0').trim_end_matches('.').to_owned() + " s"
            })
            .y_label_formatter(&|value| with_commas(value.round() as u64))
            .draw()?;
        for (corners, colour) in columns.iter().filter(|([from, to], _)| from.1 < to.1) {
            chart.plotting_area().draw(&Rectangle::new(*corners, colour.filled()))?;
        }
        chart.plotting_area().draw(&PathElement::new(line, colour.stroke_width(2)))?;
        canvas.present()?;
    }
    Ok(svg)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;

    /// The page has all parts in order, loads nothing, and shows foreign text as text.
    #[test]
    fn the_page_is_complete_and_self_contained() {
        let mut report = report(|_| {});
        report.base = "http://<b>&".to_owned();
        let page = report.render_html("sale 1: BROKEN\n  I1: <script>alert()</script>").unwrap();
        let mut from = 0;
        for part in [
            "Rush on sale 1",
            "arrivals and answers a second, in steps of 25 ms",
            "<polyline",
            "stock left",
            "First second",
            "http://&lt;b&gt;&amp;",
            "429 quota-exceeded",
            "The auditor's verdict",
            "BROKEN",
            "&lt;script&gt;",
        ] {
            from += page[from..].find(part).unwrap_or_else(|| panic!("{part:?} is missing, or not in its place"));
        }
        for outside in ["src=", "href=", "url(", "@import", "<script", "<link", "<b>"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn an_empty_rush_has_charts_too() {
        let mut report = report(|_| {});
        report.timeline.clear();
        assert!(report.render_html("").is_ok());
    }
}
