//! A slider: a picture with a gap, and the piece cut out of it. People see which of several dents has the piece's form, and drag the
//! piece there. All dents have the same size and shade, so a search for the darkest place does not find the gap.

#[cfg(any(test, debug_assertions))]
mod by_hand;
mod texture;
mod trail;

use std::array;

use rand::{Rng, RngExt};

use crate::canvas::{DrawError, IndexedPicture};
use texture::{TINTS, Texture};

#[cfg(any(test, debug_assertions))]
pub use by_hand::{by_keyboard, by_pointer};
pub use trail::{POINTS_MAX, Sample, judge};

/// The size of each picture, in pixels.
pub const WIDTH: usize = 300;
pub const HEIGHT: usize = 150;
/// The width and the height of a piece, with its knobs.
pub const PIECE: usize = 44;

/// The gap lies within these columns: far enough from the left edge, where the piece begins.
const LEFT_MIN: usize = 64;
const LEFT_MAX: usize = WIDTH - PIECE - 6;
/// The least distance between dents: they do not touch.
const APART: usize = PIECE + 6;
const TOP_MIN: usize = 6;
const TOP_MAX: usize = HEIGHT - PIECE - 6;

/// A slider, and the place of its gap: how far to move the piece, and how far below the upper edge it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slider {
    pub x: u16,
    pub y: u16,
    pub image: Vec<u8>,
    pub piece: Vec<u8>,
}

/// Draws a slider.
///
/// # Errors
/// The pictures could not be written as PNG.
pub fn draw(rng: &mut impl Rng) -> Result<Slider, DrawError> {
    let (picture, filling) = (Texture::by_chance(rng), Texture::by_chance(rng));
    let mut pixels = Vec::with_capacity(WIDTH * HEIGHT);
    for y in 0..HEIGHT {
        pixels.extend((0..WIDTH).map(|x| picture.tint(x, y)));
    }
    let colours = Colours::by_chance(rng);
    let (gap, decoys) = dents(rng);
    // The piece is cut out before the picture is dented.
    let piece = cut(&pixels, &gap);
    for dent in decoys.iter().chain([&gap]) {
        sink(&mut pixels, dent, &filling);
    }
    Ok(Slider {
        // Both fit: a picture is 300 pixels wide.
        x: gap.left as u16,
        y: gap.top as u16,
        image: IndexedPicture { width: WIDTH, height: HEIGHT, pixels }.png(&colours.of_picture(), false)?,
        piece: IndexedPicture { width: PIECE, height: PIECE, pixels: piece }.png(&colours.of_piece(), true)?,
    })
}

/// One side of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Flat,
    Knob,
    Notch,
}

impl Side {
    const ALL: [Self; 3] = [Self::Flat, Self::Knob, Self::Notch];
}

/// The form of a piece: its left, upper, right and lower side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Form([Side; 4]);

/// The body of a piece lies this far from the edge of its square.
const BODY: f32 = 9.0;
const KNOB_RADIUS: f32 = 6.5;
/// How far the centres of knobs lie outside the body, and the centres of notches inside.
const KNOB_OUT: f32 = 2.0;

impl Form {
    fn by_chance(rng: &mut impl Rng) -> Self {
        Self(array::from_fn(|_| Side::ALL[rng.random_range(0..3)]))
    }

    /// Another form, with two other sides.
    fn another(self, rng: &mut impl Rng) -> Self {
        let first = rng.random_range(0..4);
        let second = (first + rng.random_range(1..4)) % 4;
        let mut sides = self.0;
        for side in [first, second] {
            let others: Vec<Side> = Side::ALL.into_iter().filter(|other| *other != sides[side]).collect();
            sides[side] = others[rng.random_range(0..others.len())];
        }
        Self(sides)
    }

    /// Whether the piece covers a pixel of the square.
    fn covers(self, x: usize, y: usize) -> bool {
        let (x, y, middle, far) = (x as f32 + 0.5, y as f32 + 0.5, PIECE as f32 / 2.0, PIECE as f32 - BODY);
        let mut inside = (BODY..=far).contains(&x) && (BODY..=far).contains(&y);
        let outward = [(-1.0, 0.0), (0.0, -1.0), (1.0, 0.0), (0.0, 1.0)];
        for (side, (dx, dy)) in self.0.into_iter().zip(outward) {
            let shift = match side {
                Side::Flat => continue,
                Side::Knob => KNOB_OUT,
                Side::Notch => -KNOB_OUT,
            };
            let from_middle = middle - BODY + shift;
            let in_circle = (x - middle - dx * from_middle).hypot(y - middle - dy * from_middle) <= KNOB_RADIUS;
            inside = if side == Side::Knob { inside || in_circle } else { inside && !in_circle };
        }
        inside
    }

    /// The pixels of the piece, and whether each is on its edge.
    fn pixels(self) -> impl Iterator<Item = (usize, usize, bool)> {
        let all = (0..PIECE).flat_map(|y| (0..PIECE).map(move |x| (x, y)));
        all.filter(move |(x, y)| self.covers(*x, *y)).map(move |(x, y)| {
            let around = [(x.wrapping_sub(1), y), (x + 1, y), (x, y.wrapping_sub(1)), (x, y + 1)];
            let edge = around.into_iter().any(|(x, y)| x >= PIECE || y >= PIECE || !self.covers(x, y));
            (x, y, edge)
        })
    }
}

/// A place that is sunk into the picture.
struct Dent {
    left: usize,
    top: usize,
    form: Form,
}

/// The gap and two decoys: one in the same row, and one in another.
fn dents(rng: &mut impl Rng) -> (Dent, [Dent; 2]) {
    let free = LEFT_MAX - LEFT_MIN - APART;
    let (one, other) = (rng.random_range(0..=free), rng.random_range(0..=free));
    let (near, far) = (LEFT_MIN + one.min(other), LEFT_MIN + APART + one.max(other));
    let (left, beside) = if rng.random() { (near, far) } else { (far, near) };
    let top = rng.random_range(TOP_MIN..=TOP_MAX);
    // One more row fits below or above.
    let elsewhere = if top + APART <= TOP_MAX {
        rng.random_range(top + APART..=TOP_MAX)
    } else {
        rng.random_range(TOP_MIN..=top.saturating_sub(APART).max(TOP_MIN))
    };
    let form = Form::by_chance(rng);
    let decoy = |left, top, form: Form| Dent { left, top, form };
    let beside = decoy(beside, top, form.another(rng));
    let elsewhere = decoy(rng.random_range(LEFT_MIN..=LEFT_MAX), elsewhere, form.another(rng));
    (Dent { left, top, form }, [beside, elsewhere])
}

/// The number of the edge's colour in a piece; 0 is transparent, and the tints follow it.
const PIECE_EDGE: u8 = TINTS + 1;
/// In the picture: tints, their dark counterparts, and the edge of dents.
const DENT_EDGE: u8 = TINTS * 2;

/// The pixels of the right piece.
fn cut(picture: &[u8], gap: &Dent) -> Vec<u8> {
    let mut piece = vec![0; PIECE * PIECE];
    for (x, y, is_edge) in gap.form.pixels() {
        let tint = picture[(gap.top + y) * WIDTH + gap.left + x];
        piece[y * PIECE + x] = if is_edge { PIECE_EDGE } else { tint + 1 };
    }
    piece
}

/// Darkens the pixels of a dent, and fills it with another texture, which does not show the cut-out part.
fn sink(picture: &mut [u8], dent: &Dent, filling: &Texture) {
    for (x, y, is_edge) in dent.form.pixels() {
        let (x, y) = (dent.left + x, dent.top + y);
        picture[y * WIDTH + x] = if is_edge { DENT_EDGE } else { TINTS + filling.tint(x, y) };
    }
}

/// The colours of one slider.
struct Colours {
    tints: [[u8; 3]; TINTS as usize],
}

impl Colours {
    /// From one light colour to another one.
    fn by_chance(rng: &mut impl Rng) -> Self {
        let mut end = || -> [f32; 3] { array::from_fn(|_| rng.random_range(95.0..245.0)) };
        let (from, to) = (end(), end());
        let part = |n: usize| n as f32 / f32::from(TINTS - 1);
        let mixed = |n: usize, of: usize| (from[of] + (to[of] - from[of]) * part(n)) as u8;
        Self { tints: array::from_fn(|n| array::from_fn(|of| mixed(n, of))) }
    }

    fn of_picture(&self) -> Vec<[u8; 3]> {
        let dark = self.tints.iter().map(|tint| tint.map(|part| part / 2));
        self.tints.iter().copied().chain(dark).chain([[25, 25, 25]]).collect()
    }

    fn of_piece(&self) -> Vec<[u8; 3]> {
        std::iter::once([0, 0, 0]).chain(self.tints).chain([[255, 255, 255]]).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn a_slider_is_two_small_files_and_its_gap_lies_in_the_picture() {
        let drawn = |seed| draw(&mut StdRng::seed_from_u64(seed)).unwrap();
        assert_eq!(drawn(1), drawn(1));
        let mut places = BTreeSet::new();
        for slider in (0..50).map(drawn) {
            let (x, y) = (usize::from(slider.x), usize::from(slider.y));
            assert!((LEFT_MIN..=LEFT_MAX).contains(&x) && (TOP_MIN..=TOP_MAX).contains(&y));
            assert!(slider.image.len() < 20_000 && slider.piece.len() < 2_000);
            places.insert((x, y));
        }
        assert!(places.len() > 45, "{} places", places.len());
    }

    /// Choosing any dent at random is right once in three times.
    #[test]
    fn dents_lie_apart_and_no_decoy_has_the_form_of_the_piece() {
        let mut rng = StdRng::seed_from_u64(7);
        let mut nearer = 0;
        for _ in 0..1_000 {
            let (gap, decoys) = dents(&mut rng);
            for decoy in &decoys {
                assert_ne!(decoy.form, gap.form);
                assert!(decoy.left + PIECE <= WIDTH && decoy.top + PIECE <= HEIGHT);
                assert!(gap.left.abs_diff(decoy.left) >= APART || gap.top.abs_diff(decoy.top) >= PIECE);
            }
            nearer += usize::from(gap.left < decoys[0].left);
        }
        assert!((400..600).contains(&nearer), "the gap is the left one of its row {nearer} times in 1,000");
    }

    #[test]
    fn a_piece_shows_what_the_picture_lacks() {
        let gap = Dent { left: 100, top: 50, form: Form([Side::Knob; 4]) };
        let picture = vec![3; WIDTH * HEIGHT];
        let piece = cut(&picture, &gap);
        assert_eq!((piece[22 * PIECE + 22], piece[0]), (4, 0), "the tint, and transparent outside");
        let mut dented = picture.clone();
        sink(&mut dented, &gap, &Texture::by_chance(&mut StdRng::seed_from_u64(7)));
        for (n, (before, after)) in picture.iter().zip(&dented).enumerate() {
            let (x, y) = (n % WIDTH, n / WIDTH);
            let within = (100..144).contains(&x) && (50..94).contains(&y) && gap.form.covers(x - 100, y - 50);
            assert_eq!(after != before, within, "{x}, {y}");
            assert!(*after <= DENT_EDGE);
        }
    }
}
