//! Texts that people write and other people read: names, reasons, descriptions. Two texts that look the same are stored as the same
//! characters, so that a unique constraint holds both. Invisible characters, and characters that reorder text, are refused.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use unicode_joining_type::{JoiningType, get_joining_type};
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::canonical_combining_class;
use unicode_properties::UnicodeEmoji;

use super::ids::Invalid;

const ZWNJ: char = '\u{200C}';
const ZWJ: char = '\u{200D}';

/// Unicode's Default_Ignorable_Code_Point, which includes the controls of direction, and the separators of lines and paragraphs.
const HIDDEN: [RangeInclusive<char>; 18] = [
    '\u{AD}'..='\u{AD}',
    '\u{34F}'..='\u{34F}',
    '\u{61C}'..='\u{61C}',
    '\u{115F}'..='\u{1160}',
    '\u{17B4}'..='\u{17B5}',
    '\u{180B}'..='\u{180F}',
    '\u{200B}'..='\u{200F}',
    '\u{2028}'..='\u{202E}',
    '\u{2060}'..='\u{206F}',
    '\u{3164}'..='\u{3164}',
    '\u{FE00}'..='\u{FE0F}',
    '\u{FEFF}'..='\u{FEFF}',
    '\u{FFA0}'..='\u{FFA0}',
    '\u{FFF0}'..='\u{FFF8}',
    '\u{1BCA0}'..='\u{1BCA3}',
    '\u{1D173}'..='\u{1D17A}',
    '\u{E0000}'..='\u{E0FFF}',
    // A space in braille.
    '\u{2800}'..='\u{2800}',
];

/// A text on one line, in Unicode's form NFC, without spaces at its ends; spaces of any kind and number become one plain space. `length`
/// is in characters.
pub fn line(text: &str, field: &'static str, length: RangeInclusive<usize>) -> Result<String, Invalid> {
    let text = visible(text, field, &length, |_| false)?;
    let words: Vec<&str> = text.split_whitespace().collect();
    of_length(words.join(" "), field, &length)
}

/// The name of the shop: 1 to 60 characters on one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShopName(String);

impl FromStr for ShopName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        line(text, "name", 1..=60).map(Self)
    }
}

impl fmt::Display for ShopName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that may have several lines, in Unicode's form NFC, without space at its ends.
pub fn lines(text: &str, field: &'static str, length: RangeInclusive<usize>) -> Result<String, Invalid> {
    let text = visible(text, field, &length, |c| c == '\n')?;
    of_length(text.trim().to_owned(), field, &length)
}

/// Whether a character cannot be seen, or reorders its neighbours. Some such characters are right beside certain others.
pub fn is_hidden(c: char) -> bool {
    c.is_control() || HIDDEN.iter().any(|range| range.contains(&c))
}

fn visible(
    text: &str,
    field: &'static str,
    length: &RangeInclusive<usize>,
    is_allowed: impl Fn(char) -> bool,
) -> Result<String, Invalid> {
    // Bounds the work.
    if text.chars().count() > *length.end() {
        return Err(wrong_length(field, length));
    }
    let chars: Vec<char> = text.nfc().collect();
    for (at, c) in chars.iter().enumerate() {
        if is_hidden(*c) && !is_allowed(*c) && !joins(&chars[..at], *c, &chars[at + 1..]) {
            let problem =
                format!("must not contain U+{:04X}, which cannot be seen or reorders the text", u32::from(*c));
            return Err(Invalid { field, problem: problem.into() });
        }
    }
    Ok(chars.into_iter().collect())
}

fn of_length(text: String, field: &'static str, length: &RangeInclusive<usize>) -> Result<String, Invalid> {
    if length.contains(&text.chars().count()) { Ok(text) } else { Err(wrong_length(field, length)) }
}

fn wrong_length(field: &'static str, length: &RangeInclusive<usize>) -> Invalid {
    let problem = match (length.start(), length.end()) {
        (0, most) => format!("must be at most {most} characters"),
        (least, most) => format!("must be {least} to {most} characters"),
    };
    Invalid { field, problem: problem.into() }
}

/// Whether a hidden character changes how its neighbours are drawn, as scripts and emoji need it. For joiners: RFC 5892, appendix A.
fn joins(before: &[char], c: char, after: &[char]) -> bool {
    let is_after = |fits: fn(char) -> bool| before.last().copied().is_some_and(fits);
    match c {
        ZWJ => is_after(is_virama) || is_after(is_part_of_emoji) && after.first().copied().is_some_and(is_emoji),
        ZWNJ => is_after(is_virama) || is_between_joined_letters(before, after),
        // The text form or the picture of an emoji; after a digit, with a keycap.
        '\u{FE0E}' | '\u{FE0F}' => is_after(is_emoji) || after.first() == Some(&'\u{20E3}'),
        // A form of an ideograph, as some names need it.
        '\u{FE00}'..='\u{FE02}' | '\u{E0100}'..='\u{E01EF}' => is_after(is_ideograph),
        // The flag of a region.
        '\u{E0020}'..='\u{E007F}' => {
            let base = before.iter().rfind(|before| !('\u{E0020}'..='\u{E007F}').contains(*before));
            base == Some(&'\u{1F3F4}')
        }
        _ => false,
    }
}

fn is_virama(c: char) -> bool {
    canonical_combining_class(c) == 9
}

/// Digits and some signs of ASCII are emoji only with a keycap.
fn is_emoji(c: char) -> bool {
    c.is_emoji_char() && !c.is_ascii()
}

fn is_part_of_emoji(c: char) -> bool {
    is_emoji(c) || c == '\u{FE0F}'
}

fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}' | '\u{F900}'..='\u{FAFF}' | '\u{20000}'..='\u{3FFFD}')
}

/// Whether the nearest letters would be joined without the character between them, as in Arabic.
fn is_between_joined_letters(before: &[char], after: &[char]) -> bool {
    use JoiningType::{DualJoining, LeftJoining, RightJoining, Transparent};
    let is_letter = |kind: &JoiningType| *kind != Transparent;
    let left = before.iter().rev().map(|c| get_joining_type(*c)).find(is_letter);
    let right = after.iter().map(|c| get_joining_type(*c)).find(is_letter);
    matches!(left, Some(DualJoining | LeftJoining)) && matches!(right, Some(DualJoining | RightJoining))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_that_look_the_same_become_the_same() {
        for (typed, kept) in [
            ("Cafe\u{301}", "Café"),
            ("가", "가"),
            ("  Red\u{00A0}\u{2003} phone\u{3000}", "Red phone"),
            ("A\u{30A} \u{212B}", "Å Å"),
            ("\u{F900}", "\u{8C48}"),
        ] {
            assert_eq!(line(typed, "name", 1..=20).as_deref(), Ok(kept), "{typed:?}");
        }
        assert_eq!(lines("\n e\u{301}\n\n  b \n", "text", 0..=20).as_deref(), Ok("é\n\n  b"));
    }

    #[test]
    fn hidden_characters_are_named() {
        // Controls, controls of direction, characters without width, fillers, a lone joiner or selector, tags.
        for hidden in "\u{7} \u{9} \u{85} \u{9F} \u{AD} \u{34F} \u{61C} \u{115F} \u{1160} \u{180E} \u{200B} \u{200C} \u{200D} \u{200E} \u{200F} \
                       \u{2028} \u{202A} \u{202E} \u{2060} \u{2066} \u{2069} \u{2800} \u{3164} \u{FE0F} \u{FEFF} \u{FFA0} \u{E0001} \u{E0041} \u{E0101}"
            .split(' ')
            .filter(|hidden| !hidden.is_empty())
        {
            let code = format!("U+{:04X},", u32::from(hidden.chars().next().unwrap()));
            for text in [format!("ab{hidden}cd"), format!("{hidden}ab"), hidden.to_owned()] {
                for checked in [line(&text, "name", 1..=20), lines(&text, "name", 1..=20)] {
                    assert!(checked.is_err_and(|wrong| wrong.to_string().contains(&code)), "{code} {text:?}");
                }
            }
        }
        assert!(line("a\nb", "name", 1..=20).unwrap_err().to_string().contains("U+000A"));
    }

    #[test]
    fn joiners_are_taken_where_they_join() {
        for good in [
            "👩\u{200D}🚀",
            "🏳\u{FE0F}\u{200D}🌈",
            "👩🏽\u{200D}🤝\u{200D}👨🏿",
            "🏴\u{E0067}\u{E0062}\u{E0073}\u{E0063}\u{E0074}\u{E007F}",
            "1\u{FE0F}\u{20E3}",
            "☎\u{FE0E}",
            "می\u{200C}خواهم",
            "क्\u{200D}ष",
            "ශ්\u{200D}රී",
            "葛\u{E0100}城",
        ] {
            assert_eq!(line(good, "name", 1..=20).as_deref(), Ok(good), "{good:?}");
        }
        for wrong in [
            "a\u{200D}b",
            "ا\u{200C}ب",
            "می\u{200C}",
            "क\u{200D}ष",
            "1\u{FE0F}",
            "a\u{E0100}",
            "👩\u{E0067}",
            "1\u{200D}2",
        ] {
            assert!(line(wrong, "name", 1..=20).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn lengths_are_in_characters() {
        for (text, fits) in
            [("", false), (" \u{00A0}\u{3000}", false), ("猫", true), ("猫猫猫", true), ("猫猫猫猫", false)]
        {
            assert_eq!(line(text, "name", 1..=3).is_ok(), fits, "{text:?}");
        }
        // A character that becomes three.
        assert_eq!(line("\u{FB2C}", "name", 1..=2).unwrap_err().to_string(), "name must be 1 to 2 characters");
        assert_eq!(line(" ", "reason", 0..=3).as_deref(), Ok(""));
    }

    proptest! {
        #[test]
        fn a_checked_text_stays_as_it_is(text in any::<String>()) {
            for check in [line, lines] {
                if let Ok(checked) = check(&text, "text", 0..=1000) {
                    prop_assert_eq!(check(&checked, "text", 0..=1000), Ok(checked));
                }
            }
        }
    }
}
