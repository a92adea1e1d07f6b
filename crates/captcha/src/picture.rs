//! A picture of letters that people can read, and OCR cannot. The letters are turned, bent and overlapping; lines of the same ink
//! cross them. Wavy bands exchange light and dark, so no threshold separates the letters from the paper.

use std::array;
use std::f32::consts::TAU;

use rand::{Rng, RngExt};

use crate::canvas::{Canvas, DrawError, IndexedPicture, Point, at};
use crate::glyphs::{GLYPHS, Glyph};

/// The size of each picture, in pixels.
pub const WIDTH: usize = 200;
pub const HEIGHT: usize = 80;
/// Letters in a picture: one of 17⁵ texts, so a guess is right once in 1.4 million times.
pub const LENGTH: usize = 5;

/// Shades between paper and ink. Few shades give small files, and still smooth edges.
const SHADES: usize = 8;
/// Lines that cross all letters.
const LINES: usize = 2;
/// Short lines here and there.
const HOOKS: usize = 5;
const SPECKS: usize = 90;

/// A picture, and the text that it shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    pub text: String,
    pub png: Vec<u8>,
}

/// Draws a text chosen by chance.
///
/// # Errors
/// The picture could not be written as PNG.
pub fn draw(rng: &mut impl Rng) -> Result<Picture, DrawError> {
    let glyphs: [&Glyph; LENGTH] = array::from_fn(|_| &GLYPHS[rng.random_range(0..GLYPHS.len())]);
    let mut canvas = Canvas::new(WIDTH, HEIGHT);
    let bend = Bend::by_chance(rng);
    for (n, glyph) in glyphs.iter().enumerate() {
        write(&mut canvas, glyph, &Place::by_chance(rng, n), &bend, rng.random_range(2.1..2.8));
    }
    for _ in 0..LINES {
        cross(&mut canvas, rng);
    }
    for _ in 0..HOOKS {
        let from = at(rng.random_range(5.0..195.0), rng.random_range(5.0..75.0));
        let to = at(from.x + rng.random_range(-14.0..14.0), from.y + rng.random_range(-14.0..14.0));
        canvas.path([from, bend.point(to)], rng.random_range(0.9..1.4));
    }
    let band = Band::by_chance(rng);
    let mut pixels = Vec::with_capacity(WIDTH * HEIGHT);
    for y in 0..HEIGHT {
        for x in 0..WIDTH {
            let ink = band.exchange(canvas.cover(x, y), x as f32, y as f32);
            pixels.push((ink * (SHADES - 1) as f32).round() as u8);
        }
    }
    for _ in 0..SPECKS {
        pixels[rng.random_range(0..WIDTH * HEIGHT)] = rng.random_range(0..SHADES) as u8;
    }
    let png = IndexedPicture { width: WIDTH, height: HEIGHT, pixels }.png(&shades(rng), false)?;
    Ok(Picture { text: glyphs.iter().map(|Glyph(letter, _)| *letter).collect(), png })
}

/// Whether an answer is the text of a picture. Case and spaces do not count.
pub fn judge(text: &str, answer: &str) -> bool {
    let written = answer.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_ascii_uppercase());
    written.eq(text.chars())
}

/// The place, turn, slant and stretch of a letter.
struct Place {
    middle: Point,
    half_width: f32,
    half_height: f32,
    slant: f32,
    sin: f32,
    cos: f32,
}

impl Place {
    /// Letters sometimes overlap with their neighbours.
    fn by_chance(rng: &mut impl Rng, n: usize) -> Self {
        let (sin, cos) = rng.random_range(-0.33_f32..0.33).sin_cos();
        Self {
            middle: at(30.0 + 35.0 * n as f32 + rng.random_range(-4.0..4.0), 40.0 + rng.random_range(-8.0..8.0)),
            half_width: rng.random_range(13.0..17.0),
            half_height: rng.random_range(18.0..23.0),
            slant: rng.random_range(-0.2..0.2),
            sin,
            cos,
        }
    }

    /// Maps a point of the letter's box to the picture.
    fn point(&self, of_box: Point) -> Point {
        let y = (of_box.y * 2.0 - 1.0) * self.half_height;
        let x = (of_box.x * 2.0 - 1.0) * self.half_width + self.slant * y;
        at(self.middle.x + x * self.cos - y * self.sin, self.middle.y + x * self.sin + y * self.cos)
    }
}

/// Two waves that bend all letters.
struct Bend {
    across: Wave,
    down: Wave,
}

impl Bend {
    fn by_chance(rng: &mut impl Rng) -> Self {
        Self { across: Wave::by_chance(rng, 1.5..3.5, 35.0..60.0), down: Wave::by_chance(rng, 2.0..4.5, 50.0..90.0) }
    }

    fn point(&self, point: Point) -> Point {
        at(point.x + self.across.at(point.y), point.y + self.down.at(point.x))
    }
}

struct Wave {
    height: f32,
    length: f32,
    begin: f32,
}

impl Wave {
    fn by_chance(rng: &mut impl Rng, height: std::ops::Range<f32>, length: std::ops::Range<f32>) -> Self {
        Self { height: rng.random_range(height), length: rng.random_range(length), begin: rng.random_range(0.0..TAU) }
    }

    fn at(&self, along: f32) -> f32 {
        self.height * (along / self.length * TAU + self.begin).sin()
    }
}

fn write(canvas: &mut Canvas, Glyph(_, strokes): &Glyph, place: &Place, bend: &Bend, radius: f32) {
    for stroke in *strokes {
        canvas.path(stroke.trace().map(|point| bend.point(place.point(point))), radius);
    }
}

/// Draws a line through the whole picture, thinner than a letter's: people follow the letters, programs the ink.
fn cross(canvas: &mut Canvas, rng: &mut impl Rng) {
    let (from, to) = (rng.random_range(12.0..68.0), rng.random_range(12.0..68.0));
    let wave = Wave::by_chance(rng, 3.0..10.0, 60.0..140.0);
    let width = WIDTH as f32;
    let points = (0..=40).map(|step| {
        let x = step as f32 / 40.0 * (width + 10.0) - 5.0;
        at(x, from + (to - from) * x / width + wave.at(x))
    });
    canvas.path(points, rng.random_range(0.5..0.9));
}

/// A wavy band in which light and dark are exchanged.
struct Band {
    middle: f32,
    slope: f32,
    wave: Wave,
    half_height: f32,
}

impl Band {
    fn by_chance(rng: &mut impl Rng) -> Self {
        Self {
            middle: rng.random_range(26.0..54.0),
            slope: rng.random_range(-0.12..0.12),
            wave: Wave::by_chance(rng, 3.0..9.0, 70.0..150.0),
            half_height: rng.random_range(4.0..8.0),
        }
    }

    /// The ink at a place, after the exchange. The edge of the band is soft.
    fn exchange(&self, ink: f32, x: f32, y: f32) -> f32 {
        let middle = self.middle + self.slope * (x - WIDTH as f32 / 2.0) + self.wave.at(x);
        let inside = (self.half_height - (y - middle).abs() + 0.5).clamp(0.0, 1.0);
        ink * (1.0 - inside) + (1.0 - ink) * inside
    }
}

/// Colours from paper to ink, different in each picture.
fn shades(rng: &mut impl Rng) -> [[u8; 3]; SHADES] {
    let paper: [f32; 3] = array::from_fn(|_| rng.random_range(222.0..252.0));
    let ink: [f32; 3] = array::from_fn(|_| rng.random_range(15.0..95.0));
    array::from_fn(|shade| {
        let part = shade as f32 / (SHADES - 1) as f32;
        array::from_fn(|of| (paper[of] + (ink[of] - paper[of]) * part) as u8)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    /// The size matters: thousands of pictures are kept ready, and each is sent in an answer.
    #[test]
    fn a_picture_is_a_small_file_with_a_text_of_its_own() {
        let drawn = |seed| draw(&mut StdRng::seed_from_u64(seed)).unwrap();
        assert_eq!(drawn(1), drawn(1));
        let mut texts = BTreeSet::new();
        for picture in (0..50).map(drawn) {
            assert!(picture.png.len() < 6_000, "{} bytes", picture.png.len());
            let reader = png::Decoder::new(std::io::Cursor::new(picture.png)).read_info().unwrap();
            assert_eq!((reader.info().width, reader.info().height), (200, 80));
            assert_eq!(picture.text.len(), LENGTH);
            texts.insert(picture.text);
        }
        assert_eq!(texts.len(), 50);
        let letters: BTreeSet<char> = texts.iter().flat_map(|text| text.chars()).collect();
        assert_eq!(letters.len(), GLYPHS.len(), "every letter is drawn");
    }

    #[test]
    fn only_the_text_itself_is_right_however_it_is_written() {
        for right in ["AC347", "ac347", " aC3 47\n"] {
            assert!(judge("AC347", right), "{right:?}");
        }
        for wrong in ["", "AC34", "AC3477", "CA347", "AC34\u{661}", "AC34?"] {
            assert!(!judge("AC347", wrong), "{wrong:?}");
        }
    }
}
