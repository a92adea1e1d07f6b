//! Colours of pages, and whether a text in them can be read.

use std::fmt;
use std::str::FromStr;

use super::ids::Invalid;

/// The least contrast of a text with what is behind it (WCAG 2.2, 1.4.3).
const CONTRAST_MIN: f64 = 4.5;
/// The part of the accent in its soft form, in percent.
const SOFT_PERCENT: u16 = 10;

/// A colour without transparency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colour([u8; 3]);

impl Colour {
    const BLACK: Self = Self([0; 3]);
    const WHITE: Self = Self([255; 3]);

    fn luminance(self) -> f64 {
        let [red, green, blue] = self.0.map(|part| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        });
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    }

    /// From 1, the same luminance, to 21, black and white.
    fn contrast(self, other: Self) -> f64 {
        let (one, other) = (self.luminance(), other.luminance());
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    fn mixed(self, other: Self, percent: u16) -> Self {
        let mut parts = self.0;
        for (part, other) in parts.iter_mut().zip(other.0) {
            let sum = u16::from(*part) * percent + u16::from(other) * (100 - percent);
            *part = u8::try_from(sum / 100).unwrap_or(u8::MAX);
        }
        Self(parts)
    }
}

impl FromStr for Colour {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let digits =
            text.strip_prefix('#').filter(|digits| digits.len() == 6 && digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let [_, red, green, blue] =
            number.ok_or_else(|| Invalid::new("colour", "must be # and six hexadecimal digits"))?.to_be_bytes();
        Ok(Self([red, green, blue]))
    }
}

impl fmt::Display for Colour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [red, green, blue] = self.0;
        write!(f, "#{red:02x}{green:02x}{blue:02x}")
    }
}

/// The accent of light or dark pages: of buttons, prices and warnings. All its texts can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accent<const DARK: bool> {
    pub colour: Colour,
    /// Of texts on the accent.
    pub on: Colour,
    /// Behind texts in the accent.
    pub soft: Colour,
}

impl<const DARK: bool> FromStr for Accent<DARK> {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let colour: Colour = text.parse()?;
        // --paper and --panel of style.css.
        let [paper, panel] =
            if DARK { [[0x17, 0x14, 0x11], [0x21, 0x1d, 0x19]] } else { [[0xf7, 0xf4, 0xef], [0xff; 3]] };
        let soft = colour.mixed(Colour(panel), SOFT_PERCENT);
        let is_read =
            [Colour(paper), Colour(panel), soft].into_iter().all(|behind| colour.contrast(behind) >= CONTRAST_MIN);
        if !is_read {
            let problem = if DARK { "must be lighter" } else { "must be darker" };
            return Err(Invalid::new("accent", problem));
        }
        let on = if colour.contrast(Colour::WHITE) >= colour.contrast(Colour::BLACK) {
            Colour::WHITE
        } else {
            Colour::BLACK
        };
        Ok(Self { colour, on, soft })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colour_is_six_digits() {
        assert_eq!("#1E6b45".parse::<Colour>().map(|colour| colour.to_string()), Ok("#1e6b45".to_owned()));
        for wrong in ["", "#", "1e6b45", "#1e6b4", "#1e6b455", "#1e6b4g", "#+e6b45", "red", "#1e6b4é", "#fff"] {
            assert!(wrong.parse::<Colour>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn contrasts_are_those_of_the_standard() {
        for (one, other, expected) in
            [("#000000", "#ffffff", 21.0), ("#767676", "#ffffff", 4.54), ("#ffffff", "#ffffff", 1.0)]
        {
            let [one, other]: [Colour; 2] = [one, other].map(|text| text.parse().unwrap());
            assert!((one.contrast(other) - expected).abs() < 0.01, "{one} {other}");
        }
    }

    #[test]
    fn an_accent_can_be_read() {
        for good in ["#b8321f", "#0b6b3a", "#000000", "#1d4fa5"] {
            assert!(good.parse::<Accent<false>>().is_ok(), "{good}");
            assert!(good.parse::<Accent<true>>().is_err(), "{good}");
        }
        for good in ["#ff8a70", "#7fd3a5", "#ffffff"] {
            assert!(good.parse::<Accent<true>>().is_ok(), "{good}");
            assert!(good.parse::<Accent<false>>().is_err(), "{good}");
        }
        let light: Accent<false> = "#0b6b3a".parse().unwrap();
        assert_eq!((light.on, light.soft.to_string().as_str()), (Colour::WHITE, "#e6f0eb"));
        let dark: Accent<true> = "#ffffff".parse().unwrap();
        assert_eq!(dark.on, Colour::BLACK);
    }
}
