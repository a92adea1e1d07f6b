//! Draws one trace: a bar for each span, below its parent, in the colour of its process.

use std::fmt::Write;

use super::collector::Exported;

const WIDTH: f64 = 1080.0;
/// The end of the names and the start of the bars.
const NAMES: f64 = 250.0;
/// Room for the duration behind the last bar.
const RIGHT: f64 = 90.0;
const ROW: f64 = 24.0;
const TOP: f64 = 64.0;
/// One for each process, in the order in which the trace reaches them.
const COLOURS: [&str; 5] = ["#1f6feb", "#8250df", "#bf3989", "#9a6700", "#1a7f37"];

/// The trace as an SVG. A span without its parent in the list begins a tree.
pub fn svg(title: &str, spans: &[Exported]) -> String {
    let first_ns = spans.iter().map(|span| span.start_ns).min().unwrap_or(0);
    let last_ns = spans.iter().map(|span| span.end_ns).max().unwrap_or(1);
    let all_ms = ((last_ns - first_ns) as f64 / 1e6).max(0.001);
    let x = |ns: u64| NAMES + (ns - first_ns) as f64 / 1e6 / all_ms * (WIDTH - NAMES - RIGHT);
    let mut services: Vec<&str> = Vec::new();
    for span in spans {
        if !services.contains(&span.service.as_str()) {
            services.push(&span.service);
        }
    }
    let colour = |service: &str| {
        let place = services.iter().position(|known| *known == service).unwrap_or(0);
        COLOURS[place % COLOURS.len()]
    };
    let rows = in_order(spans);
    let height = TOP + rows.len() as f64 * ROW + 16.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, sans-serif\" \
         font-size=\"12\" role=\"img\" aria-label=\"{title}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"12\" y=\"22\" font-size=\"15\" font-weight=\"600\" fill=\"#1f2328\">{title}</text>\n",
        title = escaped(title)
    );
    let mut legend = 12.0;
    for service in &services {
        _ = writeln!(
            out,
            "<rect x=\"{legend}\" y=\"33\" width=\"11\" height=\"11\" rx=\"2\" fill=\"{}\"/><text x=\"{}\" y=\"43\" \
             fill=\"#1f2328\">{}</text>",
            colour(service),
            legend + 16.0,
            escaped(service)
        );
        legend += 40.0 + 7.0 * service.len() as f64;
    }
    let step_ms = tick(all_ms);
    for n in 0..=(all_ms / step_ms) as u32 {
        let at_ms = f64::from(n) * step_ms;
        let at = NAMES + at_ms / all_ms * (WIDTH - NAMES - RIGHT);
        _ = writeln!(
            out,
            "<path d=\"M{at:.1} {TOP}V{:.1}\" stroke=\"#d1d9e0\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" \
             font-size=\"11\" fill=\"#59636e\">{at_ms} ms</text>",
            height - 10.0,
            TOP - 5.0
        );
    }
    for (row, (depth, span)) in rows.into_iter().enumerate() {
        let y = TOP + row as f64 * ROW + 4.0;
        let (from, to) = (x(span.start_ns), x(span.end_ns));
        let ms = (span.end_ns - span.start_ns) as f64 / 1e6;
        _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"#1f2328\">{}</text><rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" \
             height=\"15\" rx=\"2\" fill=\"{}\"><title>{} {}</title></rect><text x=\"{:.1}\" y=\"{:.1}\" font-size=\"11\" \
             fill=\"#59636e\">{ms:.1} ms{}</text>",
            12.0 + 14.0 * depth as f64,
            y + 12.0,
            escaped(&span.name),
            (to - from).max(2.0),
            colour(&span.service),
            escaped(&span.service),
            escaped(&span.name),
            to.max(from + 2.0) + 5.0,
            y + 12.0,
            if span.failed { ", failed" } else { "" }
        );
    }
    out + "</svg>\n"
}

/// Each span with its depth: parents before children, earlier before later.
fn in_order(spans: &[Exported]) -> Vec<(usize, &Exported)> {
    fn add<'a>(mut next: Vec<&'a Exported>, depth: usize, all: &'a [Exported], rows: &mut Vec<(usize, &'a Exported)>) {
        next.sort_by_key(|span| span.start_ns);
        for span in next {
            rows.push((depth, span));
            add(all.iter().filter(|other| other.parent == span.id).collect(), depth + 1, all, rows);
        }
    }
    let begins = |span: &&Exported| spans.iter().all(|other| other.id != span.parent);
    let mut rows = Vec::new();
    add(spans.iter().filter(begins).collect(), 0, spans, &mut rows);
    rows
}

/// The time between two marks, so that there are at most ten.
fn tick(all_ms: f64) -> f64 {
    let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0];
    steps.into_iter().find(|step| all_ms / step <= 10.0).unwrap_or(all_ms)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
