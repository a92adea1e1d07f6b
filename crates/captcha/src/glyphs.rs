//! The letters of a picture as strokes of a pen: they can be bent anywhere, and need no font file.

use Stroke::{Corners, Curve};

use crate::canvas::{Point, at};

/// A stroke of a letter, in a box of the size 1; x to the right and y down.
pub(crate) enum Stroke {
    /// Straight lines from corner to corner.
    Corners(&'static [(f32, f32)]),
    /// A smooth curve through all points.
    Curve(&'static [(f32, f32)]),
}

/// A letter or digit, and its strokes.
pub(crate) struct Glyph(pub char, pub &'static [Stroke]);

/// Characters that people can tell apart even when bent and turned: not 0 O D Q, 1 I, 2 Z, 5 S, 6 9 G, 8 B, F, R, U V.
pub(crate) static GLYPHS: [Glyph; 17] = [
    Glyph('A', &[Corners(&[(0.0, 1.0), (0.5, 0.0), (1.0, 1.0)]), Corners(&[(0.19, 0.63), (0.81, 0.63)])]),
    Glyph(
        'C',
        &[Curve(&[
            (0.97, 0.2),
            (0.75, 0.03),
            (0.4, 0.02),
            (0.1, 0.25),
            (0.02, 0.52),
            (0.12, 0.8),
            (0.42, 0.99),
            (0.76, 0.97),
            (0.98, 0.79),
        ])],
    ),
    Glyph(
        'E',
        &[Corners(&[(0.95, 0.0), (0.06, 0.0), (0.06, 1.0), (0.97, 1.0)]), Corners(&[(0.06, 0.49), (0.8, 0.49)])],
    ),
    Glyph(
        'H',
        &[
            Corners(&[(0.05, 0.0), (0.05, 1.0)]),
            Corners(&[(0.95, 0.0), (0.95, 1.0)]),
            Corners(&[(0.05, 0.5), (0.95, 0.5)]),
        ],
    ),
    Glyph(
        'J',
        &[
            Corners(&[(0.4, 0.0), (1.0, 0.0)]),
            Curve(&[(0.74, 0.0), (0.74, 0.35), (0.73, 0.7), (0.58, 0.95), (0.32, 1.0), (0.1, 0.87), (0.04, 0.66)]),
        ],
    ),
    Glyph(
        'K',
        &[
            Corners(&[(0.08, 0.0), (0.08, 1.0)]),
            Corners(&[(0.94, 0.0), (0.08, 0.6)]),
            Corners(&[(0.38, 0.39), (0.97, 1.0)]),
        ],
    ),
    Glyph('L', &[Corners(&[(0.1, 0.0), (0.1, 1.0), (0.97, 1.0)])]),
    Glyph('M', &[Corners(&[(0.0, 1.0), (0.06, 0.0), (0.5, 0.65), (0.94, 0.0), (1.0, 1.0)])]),
    Glyph('N', &[Corners(&[(0.05, 1.0), (0.05, 0.0), (0.95, 1.0), (0.95, 0.0)])]),
    Glyph(
        'P',
        &[
            Corners(&[(0.1, 0.0), (0.1, 1.0)]),
            Curve(&[(0.1, 0.02), (0.55, 0.0), (0.9, 0.11), (0.97, 0.29), (0.87, 0.48), (0.52, 0.57), (0.1, 0.57)]),
        ],
    ),
    Glyph('T', &[Corners(&[(0.0, 0.0), (1.0, 0.0)]), Corners(&[(0.5, 0.0), (0.5, 1.0)])]),
    Glyph('W', &[Corners(&[(0.0, 0.0), (0.22, 1.0), (0.5, 0.33), (0.78, 1.0), (1.0, 0.0)])]),
    Glyph('X', &[Corners(&[(0.02, 0.0), (0.98, 1.0)]), Corners(&[(0.98, 0.0), (0.02, 1.0)])]),
    Glyph('Y', &[Corners(&[(0.0, 0.0), (0.5, 0.48), (1.0, 0.0)]), Corners(&[(0.5, 0.48), (0.5, 1.0)])]),
    Glyph(
        '3',
        &[
            Curve(&[(0.08, 0.12), (0.36, 0.0), (0.72, 0.04), (0.88, 0.23), (0.74, 0.42), (0.38, 0.48)]),
            Curve(&[(0.38, 0.48), (0.8, 0.55), (0.96, 0.76), (0.76, 0.97), (0.38, 1.0), (0.04, 0.87)]),
        ],
    ),
    Glyph('4', &[Corners(&[(0.74, 1.0), (0.74, 0.0), (0.02, 0.69), (1.0, 0.69)])]),
    Glyph('7', &[Corners(&[(0.03, 0.0), (0.97, 0.0), (0.34, 1.0)])]),
];

/// Steps between two points of a stroke: enough for a bent picture.
const STEPS: usize = 8;

impl Stroke {
    /// Closely spaced points along the stroke.
    pub(crate) fn trace(&self) -> impl Iterator<Item = Point> + '_ {
        let last = self.points().len().saturating_sub(1);
        (0..last).flat_map(move |span| {
            let end = if span + 1 == last { STEPS + 1 } else { STEPS };
            (0..end).map(move |step| self.between(span, step as f32 / STEPS as f32))
        })
    }

    const fn points(&self) -> &'static [(f32, f32)] {
        match self {
            Corners(points) | Curve(points) => points,
        }
    }

    /// A point of the span that begins with this point. Curves are Catmull-Rom splines.
    fn between(&self, span: usize, along: f32) -> Point {
        let points = self.points();
        // An end has only one neighbour: the missing one is the end itself.
        let point = |n: usize| points[n.min(points.len() - 1)];
        let (before, from, to, after) = (point(span.saturating_sub(1)), point(span), point(span + 1), point(span + 2));
        let blend = |before: f32, from: f32, to: f32, after: f32| match self {
            Corners(_) => from + (to - from) * along,
            Curve(_) => {
                let (slope_from, slope_to) = ((to - before) / 2.0, (after - from) / 2.0);
                let (square, cube) = (along * along, along * along * along);
                from * (2.0 * cube - 3.0 * square + 1.0)
                    + to * (3.0 * square - 2.0 * cube)
                    + slope_from * (cube - 2.0 * square + along)
                    + slope_to * (cube - square)
            }
        };
        at(blend(before.0, from.0, to.0, after.0), blend(before.1, from.1, to.1, after.1))
    }
}
