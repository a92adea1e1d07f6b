//! The texture of a slider's picture: smooth noise, in a few tints.

use rand::{Rng, RngExt};

use super::{HEIGHT, WIDTH};

/// Tints of a picture. Twice this number plus the edges fits into four bits a pixel.
pub(super) const TINTS: u8 = 7;

/// The cell sizes of the noise in pixels, and their weights.
const LAYERS: [(usize, f32); 2] = [(30, 0.62), (10, 0.38)];

/// Noise that covers a picture.
pub(super) struct Texture {
    layers: Vec<Layer>,
}

/// Random values at the corners of a grid; between them, a smooth blend.
struct Layer {
    cell: usize,
    part: f32,
    columns: usize,
    corners: Vec<f32>,
}

impl Texture {
    pub(crate) fn by_chance(rng: &mut impl Rng) -> Self {
        let mut layer = |(cell, part): (usize, f32)| {
            let (columns, rows) = (WIDTH / cell + 2, HEIGHT / cell + 2);
            Layer { cell, part, columns, corners: (0..columns * rows).map(|_| rng.random()).collect() }
        };
        Self { layers: LAYERS.into_iter().map(&mut layer).collect() }
    }

    /// The tint of a pixel of the picture.
    pub(crate) fn tint(&self, x: usize, y: usize) -> u8 {
        let value: f32 = self.layers.iter().map(|layer| layer.part * layer.value(x, y)).sum();
        // Blends rarely come near the ends. They are stretched so that all tints occur.
        let stretched = ((value - 0.5) * 1.7 + 0.5).clamp(0.0, 0.999);
        (stretched * f32::from(TINTS)) as u8
    }
}

impl Layer {
    fn value(&self, x: usize, y: usize) -> f32 {
        let smooth = |n: usize| {
            let part = (n % self.cell) as f32 / self.cell as f32;
            part * part * (3.0 - 2.0 * part)
        };
        let first = y / self.cell * self.columns + x / self.cell;
        let corner = |n: usize| self.corners.get(n).copied().unwrap_or_default();
        let (across, down) = (smooth(x), smooth(y));
        let blend = |from: f32, to: f32, part: f32| from + (to - from) * part;
        let above = blend(corner(first), corner(first + 1), across);
        let below = blend(corner(first + self.columns), corner(first + self.columns + 1), across);
        blend(above, below, down)
    }
}
