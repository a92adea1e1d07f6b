//! A canvas for pictures, and its conversion to PNG.

use png::{BitDepth, ColorType, DeflateCompression, Encoder, Filter};

/// A picture could not be written as PNG: an error of this crate.
#[derive(Debug, thiserror::Error)]
#[error("png: {0}")]
pub struct DrawError(#[from] png::EncodingError);

/// The most colours of a picture: a pixel takes four bits.
pub(crate) const COLOURS_MAX: usize = 16;
/// Higher levels hardly shrink such noise, and take several times longer.
const DEFLATE_LEVEL: u8 = 3;

/// A place on a picture: x to the right and y down, in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    pub x: f32,
    pub y: f32,
}

pub(crate) const fn at(x: f32, y: f32) -> Point {
    Point { x, y }
}

/// The ink coverage of each pixel.
pub(crate) struct Canvas {
    pub width: usize,
    pub height: usize,
    /// 0 is paper and 1 is ink, row by row.
    cover: Vec<f32>,
}

impl Canvas {
    pub(crate) fn new(width: usize, height: usize) -> Self {
        Self { width, height, cover: vec![0.0; width * height] }
    }

    /// The ink of a pixel.
    pub(crate) fn cover(&self, x: usize, y: usize) -> f32 {
        self.cover.get(y * self.width + x).copied().unwrap_or(0.0)
    }

    /// Draws a straight line with round ends. Parts outside are cut off. Where lines cross, the ink does not add up.
    pub(crate) fn line(&mut self, from: Point, to: Point, radius: f32) {
        let reach = radius + 1.0;
        let (left, right) = (from.x.min(to.x) - reach, from.x.max(to.x) + reach);
        let (top, bottom) = (from.y.min(to.y) - reach, from.y.max(to.y) + reach);
        // Casting a negative number gives 0.
        let columns = left as usize..(right.max(0.0) as usize + 1).min(self.width);
        let rows = top as usize..(bottom.max(0.0) as usize + 1).min(self.height);
        let (dx, dy) = (to.x - from.x, to.y - from.y);
        let length_squared = dx * dx + dy * dy;
        for y in rows {
            for x in columns.clone() {
                // The distance from the middle of the pixel to the nearest point of the line.
                let (px, py) = (x as f32 + 0.5 - from.x, y as f32 + 0.5 - from.y);
                let along =
                    if length_squared > 0.0 { ((px * dx + py * dy) / length_squared).clamp(0.0, 1.0) } else { 0.0 };
                let distance = (px - along * dx).hypot(py - along * dy);
                let cover = (reach - 0.5 - distance).clamp(0.0, 1.0);
                if let Some(pixel) = self.cover.get_mut(y * self.width + x) {
                    *pixel = pixel.max(cover);
                }
            }
        }
    }

    /// Draws a line through these points.
    pub(crate) fn path(&mut self, points: impl IntoIterator<Item = Point>, radius: f32) {
        let mut last = None;
        for point in points {
            self.line(last.unwrap_or(point), point, radius);
            last = Some(point);
        }
    }
}

/// A picture of few colours: the colour number of each pixel, row by row.
pub(crate) struct IndexedPicture {
    pub width: usize,
    pub height: usize,
    pub pixels: Vec<u8>,
}

impl IndexedPicture {
    /// The picture as a PNG file. `colours` are at most 16; the first one may be transparent.
    pub(crate) fn png(&self, colours: &[[u8; 3]], first_is_transparent: bool) -> Result<Vec<u8>, DrawError> {
        debug_assert!(colours.len() <= COLOURS_MAX && self.pixels.len() == self.width * self.height);
        let mut file = Vec::with_capacity(self.pixels.len() / 3);
        // Both numbers are constants of this crate.
        let mut encoder = Encoder::new(&mut file, self.width as u32, self.height as u32);
        encoder.set_color(ColorType::Indexed);
        encoder.set_depth(BitDepth::Four);
        encoder.set_palette(colours.concat());
        if first_is_transparent {
            encoder.set_trns(vec![0]);
        }
        encoder.set_deflate_compression(DeflateCompression::Level(DEFLATE_LEVEL));
        // Filters predict a colour number from its neighbours. Here the numbers of neighbours are unrelated.
        encoder.set_filter(Filter::NoFilter);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.packed())?;
        writer.finish()?;
        Ok(file)
    }

    /// Two pixels a byte. Each row starts a new byte.
    fn packed(&self) -> Vec<u8> {
        let rows = self.pixels.chunks(self.width);
        rows.flat_map(|row| row.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).copied().unwrap_or(0))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_pixels_and_colours_that_it_was_made_of() {
        let pixels: Vec<u8> = (0..15).collect();
        let colours: Vec<[u8; 3]> = (0..16).map(|n| [n, n * 2, n * 3]).collect();
        let file = IndexedPicture { width: 5, height: 3, pixels: pixels.clone() }.png(&colours, true).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        // Three rows of three bytes: the last half of each is empty.
        let mut rows = [0; 9];
        reader.next_frame(&mut rows).unwrap();
        let row = |row: &[u8]| row.iter().flat_map(|pair| [pair >> 4, pair & 15]).take(5).collect::<Vec<u8>>();
        let found: Vec<u8> = rows.chunks(3).flat_map(row).collect();
        assert_eq!(found, pixels);
        assert_eq!(reader.info().palette.as_deref(), Some(&colours.concat()[..]));
        assert_eq!(reader.info().trns.as_deref(), Some(&[0][..]));
    }
}
