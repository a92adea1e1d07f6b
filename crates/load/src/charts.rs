//! The report's charts as SVG, each in two sizes: labels that shrink with a wide chart cannot be read on a phone.

use std::io;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::numbers::with_commas;
use super::statistics::{Bucket, HistogramStep, LatencyBucket};

/// A colour of the charts. The SVG has the one of the light scheme; the style sheet replaces it in the dark scheme.
#[derive(Debug)]
pub struct Colour {
    pub name: &'static str,
    pub light: RGBColor,
    pub dark: RGBColor,
}

const fn define(name: &'static str, light: u32, dark: u32) -> Colour {
    const fn rgb(hex: u32) -> RGBColor {
        RGBColor((hex >> 16) as u8, (hex >> 8) as u8, hex as u8)
    }
    Colour { name, light: rgb(light), dark: rgb(dark) }
}

pub const TEXT: Colour = define("label", 0x5A6473, 0xA3AEC0);
const GRID: Colour = define("grid", 0xE8EBF0, 0x262F3E);
const AXIS: Colour = define("axis", 0xC2C9D4, 0x445068);
pub const ARRIVED: Colour = define("arrived", 0x1B2333, 0xEEF2F8);
pub const ACCEPTED: Colour = define("accepted", 0x12925F, 0x3CC98B);
pub const SOLD_OUT: Colour = define("sold-out", 0xA9B4C6, 0x5F6F8A);
pub const REFUSED: Colour = define("refused", 0xE09A2B, 0xEFB252);
pub const FAILED: Colour = define("failed", 0xCF3A3A, 0xF47070);
pub const STOCK: Colour = define("stock", 0x13925E, 0x3DC98A);
pub const MEDIAN: Colour = define("median", 0x8AB8F0, 0x44699B);
pub const P99: Colour = define("p99", 0x2F76D2, 0x6FAAF5);
pub const SLOWEST: Colour = define("slowest", 0x173F7A, 0xCFE2FF);
pub const FIRST_SECOND: Colour = define("first-second", 0x7B4FD6, 0xB297F7);

pub const COLOURS: [&Colour; 13] = [
    &TEXT,
    &GRID,
    &AXIS,
    &ARRIVED,
    &ACCEPTED,
    &SOLD_OUT,
    &REFUSED,
    &FAILED,
    &STOCK,
    &MEDIAN,
    &P99,
    &SLOWEST,
    &FIRST_SECOND,
];

/// A chart as SVG, for a wide screen and for a phone.
pub struct Picture {
    pub wide: String,
    pub narrow: String,
}

#[derive(Clone, Copy)]
struct Size {
    width: u32,
    height: u32,
    time_labels: usize,
}

const WIDE: Size = Size { width: 960, height: 300, time_labels: 11 };
const NARROW: Size = Size { width: 400, height: 260, time_labels: 7 };
/// Twelve pixels on the page: plotters writes a smaller size than it is given.
const FONT_SIZE: f64 = 12.0 * 1.24;
const VALUE_LABELS: usize = 5;

pub type DrawError = DrawingAreaErrorKind<io::Error>;
/// Reads the value to draw from a row.
type Value<T, N> = fn(&T) -> N;
type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn picture(draw: impl Fn(&Canvas, Size) -> Result<(), DrawError>) -> Result<Picture, DrawError> {
    let svg = |size: Size| {
        let mut svg = String::new();
        {
            let canvas = SVGBackend::with_string(&mut svg, (size.width, size.height)).into_drawing_area();
            draw(&canvas, size)?;
            canvas.present()?;
        }
        Ok::<_, DrawError>(svg)
    };
    Ok(Picture { wide: svg(WIDE)?, narrow: svg(NARROW)? })
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

/// Arrivals as a line, and answers by kind as stacked columns, both per second.
pub fn traffic(buckets: &[Bucket], bucket_ms: u64, paced: bool) -> Result<Picture, DrawError> {
    let per_second = |number: u64| number as f64 * 1_000.0 / bucket_ms as f64;
    let arrivals = |bucket: &Bucket| per_second(if paced { bucket.arrived } else { bucket.sent });
    let kinds = |bucket: &Bucket| {
        [
            (bucket.accepted, &ACCEPTED),
            (bucket.sold_out, &SOLD_OUT),
            (bucket.refused, &REFUSED),
            (bucket.failed, &FAILED),
        ]
    };
    let answered = |bucket: &Bucket| per_second(kinds(bucket).iter().map(|(number, _)| number).sum());
    let top = buckets.iter().map(|bucket| arrivals(bucket).max(answered(bucket))).fold(1.0, f64::max) * 1.06;
    let end_s = seconds(bucket_ms * buckets.len() as u64);

    picture(|canvas, size| {
        let mut chart = builder(canvas).build_cartesian_2d(0.0..end_s, 0.0..top)?;
        mesh(&mut chart, size, &time_label, &|value| with_commas(value.round() as u64))?;
        let gap = u32::from(size.width as usize > buckets.len() * 8);
        for bucket in buckets {
            let (from_s, to_s) = (seconds(bucket.from_ms), seconds(bucket.from_ms + bucket_ms));
            let mut below = 0.0;
            for (number, colour) in kinds(bucket).into_iter().filter(|(number, _)| *number > 0) {
                let above = below + per_second(number);
                let mut column = Rectangle::new([(from_s, below), (to_s, above)], colour.light.filled());
                column.set_margin(0, 0, 0, gap);
                chart.plotting_area().draw(&column)?;
                below = above;
            }
        }
        let edges = buckets.iter().flat_map(|bucket| {
            [bucket.from_ms, bucket.from_ms + bucket_ms].map(|edge_ms| (seconds(edge_ms), arrivals(bucket)))
        });
        chart.plotting_area().draw(&PathElement::new(edges.collect::<Vec<_>>(), ARRIVED.light.stroke_width(2)))
    })
}

/// The stock left by the orders promised, or the number of these orders if the stock is not known. The chart ends soon
/// after the last of them.
pub fn stock(fine: &[Bucket], fine_ms: u64, coarse: &[Bucket], coarse_ms: u64) -> Result<Picture, DrawError> {
    let value = |bucket: &Bucket| bucket.stock_left.unwrap_or(bucket.orders_so_far) as f64;
    let begin = coarse.first().and_then(|bucket| Some(bucket.stock_left? + bucket.orders_so_far)).unwrap_or(0) as f64;
    let fine_end_ms = fine.last().map_or(0, |bucket| bucket.from_ms + fine_ms);
    let mut line = vec![(0.0, begin)];
    line.extend(fine.iter().map(|bucket| (seconds(bucket.from_ms + fine_ms), value(bucket))));
    let rest = coarse.iter().filter(|bucket| bucket.from_ms + coarse_ms > fine_end_ms);
    line.extend(rest.map(|bucket| (seconds(bucket.from_ms + coarse_ms), value(bucket))));
    let last = line.iter().map(|(_, value)| *value).next_back().unwrap_or(0.0);
    let last_order_s = line.iter().find(|(_, value)| *value == last).map_or(0.0, |(at_s, _)| *at_s);
    line.retain(|(at_s, _)| *at_s <= (last_order_s * 2.0).max(1.0));
    let top = line.iter().map(|(_, value)| *value).fold(1.0, f64::max) * 1.06;
    let end_s = line.last().map_or(1.0, |(end_s, _)| *end_s);
    let area: Vec<_> = [(0.0, 0.0)].into_iter().chain(line.iter().copied()).chain([(end_s, 0.0)]).collect();

    picture(|canvas, size| {
        let mut chart = builder(canvas).build_cartesian_2d(0.0..end_s.max(0.01), 0.0..top)?;
        mesh(&mut chart, size, &time_label, &|value| with_commas(value.round() as u64))?;
        chart.plotting_area().draw(&Polygon::new(area.clone(), STOCK.light.mix(0.18).filled()))?;
        chart.plotting_area().draw(&PathElement::new(line.clone(), STOCK.light.stroke_width(2)))
    })
}

/// Percentiles by the time of arrival, on a logarithmic scale.
pub fn latency(buckets: &[LatencyBucket], bucket_ms: u64, end_ms: u64) -> Result<Picture, DrawError> {
    let lines: [(Value<LatencyBucket, f64>, &Colour); 3] = [
        (|bucket| bucket.latency.p50_ms, &MEDIAN),
        (|bucket| bucket.latency.p99_ms, &P99),
        (|bucket| bucket.latency.max_ms, &SLOWEST),
    ];
    let least = buckets.iter().map(|bucket| bucket.latency.p50_ms).fold(f64::INFINITY, f64::min).clamp(0.01, 1e6);
    let most = buckets.iter().map(|bucket| bucket.latency.max_ms).fold(least, f64::max);
    let bottom = 10f64.powf(least.log10().floor());
    let top = (most * 1.3).max(bottom * 10.0);

    picture(|canvas, size| {
        let time = 0.0..seconds(end_ms).max(0.01);
        let mut chart = builder(canvas).build_cartesian_2d(time, (bottom..top).log_scale())?;
        mesh(&mut chart, size, &time_label, &|value| duration(*value))?;
        for (value, colour) in lines {
            let middle = |bucket: &LatencyBucket| {
                ((bucket.from_ms as f64 + bucket_ms as f64 / 2.0) / 1_000.0, value(bucket).max(bottom))
            };
            let points: Vec<_> = buckets.iter().map(middle).collect();
            for point in &points {
                chart.plotting_area().draw(&Circle::new(*point, 2, colour.light.filled()))?;
            }
            chart.plotting_area().draw(&PathElement::new(points, colour.light.stroke_width(2)))?;
        }
        Ok(())
    })
}

/// Shares of all arrivals, and of the first second's, by their wait.
pub fn histogram(steps: &[HistogramStep]) -> Result<Picture, DrawError> {
    let total = |of: Value<HistogramStep, u64>| steps.iter().map(of).sum::<u64>().max(1) as f64;
    let groups: [(Value<HistogramStep, u64>, &Colour, f64); 2] =
        [(|step| step.all, &P99, 0.10), (|step| step.first_second, &FIRST_SECOND, 0.50)];
    let percent = |step: &HistogramStep, of: Value<HistogramStep, u64>| of(step) as f64 * 100.0 / total(of);
    let peak = steps.iter().flat_map(|step| groups.map(|(of, ..)| percent(step, of))).fold(1.0, f64::max);

    picture(|canvas, size| {
        let mut chart = builder(canvas).build_cartesian_2d(0.0..steps.len().max(1) as f64, 0.0..peak * 1.06)?;
        // A label for every edge between two steps, or only for the powers of ten if there is too little room.
        let room_for_all = size.width as usize > steps.len() * 60;
        let edge = |place: &f64| {
            let Some(step) = (place.fract() == 0.0).then(|| steps.get((*place as usize).checked_sub(1)?)).flatten()
            else {
                return String::new();
            };
            let power = step.up_to_ms.log10();
            if room_for_all || (power - power.round()).abs() < 1e-6 { duration(step.up_to_ms) } else { String::new() }
        };
        let every_edge = Size { time_labels: steps.len() + 2, ..size };
        mesh(&mut chart, every_edge, &edge, &|value| format!("{value:.0} %"))?;
        for (place, step) in steps.iter().enumerate() {
            for (of, colour, from) in groups {
                let from = place as f64 + from;
                let column = [(from, 0.0), (from + 0.4, percent(step, of))];
                let mut column = Rectangle::new(column, colour.light.filled());
                column.set_margin(0, 0, 0, 1);
                chart.plotting_area().draw(&column)?;
            }
        }
        Ok(())
    })
}

fn builder<'a, 'b>(canvas: &'a Canvas<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(canvas);
    builder.margin_top(8).margin_right(28).x_label_area_size(28).y_label_area_size(58);
    builder
}

fn mesh<'a, 'b: 'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>,
    size: Size,
    x_label: &dyn Fn(&f64) -> String,
    y_label: &dyn Fn(&f64) -> String,
) -> Result<(), DrawError>
where
    X: Ranged<ValueType = f64> + plotters::coord::ranged1d::ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + plotters::coord::ranged1d::ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(0)
        .bold_line_style(GRID.light)
        .axis_style(AXIS.light)
        .label_style(("sans-serif", FONT_SIZE).into_font().color(&TEXT.light))
        .x_labels(size.time_labels)
        .y_labels(VALUE_LABELS)
        .x_label_formatter(x_label)
        .y_label_formatter(y_label)
        .draw()
}

fn time_label(seconds: &f64) -> String {
    format!("{} s", plain(*seconds))
}

/// Milliseconds, or seconds from a thousand of them on.
fn duration(ms: f64) -> String {
    if ms < 999.5 { format!("{} ms", plain(ms)) } else { format!("{} s", plain(ms / 1_000.0)) }
}

/// At most three decimals, without trailing zeros.
fn plain(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_style_sheet_can_distinguish_all_colours() {
        let colours: BTreeSet<_> =
            COLOURS.iter().map(|colour| (colour.light.0, colour.light.1, colour.light.2)).collect();
        assert_eq!(colours.len(), COLOURS.len());
    }

    #[test]
    fn labels_are_short() {
        assert_eq!([0.5, 1.0, 20.0, 999.9, 2_500.0].map(duration), ["0.5 ms", "1 ms", "20 ms", "1 s", "2.5 s"]);
        assert_eq!(time_label(&0.30000000000000004), "0.3 s");
    }

    #[test]
    fn an_empty_rush_has_charts_too() {
        assert!(traffic(&[], 10, true).is_ok());
        assert!(stock(&[], 25, &[], 10).is_ok());
        assert!(latency(&[], 10, 0).is_ok());
        assert!(histogram(&[]).is_ok());
    }

    #[test]
    fn the_stock_falls_with_the_orders_promised() -> Result<(), DrawError> {
        let bucket = |from_ms, orders_so_far| Bucket {
            from_ms,
            orders_so_far,
            stock_left: Some(10 - orders_so_far),
            ..Bucket::default()
        };
        let picture = stock(&[], 25, &[bucket(0, 4), bucket(100, 10)], 100)?;
        let line = picture.wide.lines().rfind(|line| line.starts_with("<polyline")).unwrap_or_default();
        let points = line.split("points=\"").nth(1).unwrap_or_default();
        assert_eq!(points.split_whitespace().filter(|point| point.contains(',')).count(), 3, "{line}");
        Ok(())
    }
}
