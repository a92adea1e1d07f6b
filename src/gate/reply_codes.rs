//! The reply codes of the Lua scripts. The header comment of each script lists them, one a line; the test below holds
//! those tables, and the constants of the scripts, against these enums.

/// Why a script did not touch a sale: a reply of reserve.lua, answer_challenge.lua, release.lua and release_wave.lua.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[cfg_attr(test, derive(strum::IntoStaticStr, strum::VariantArray))]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[repr(i64)]
pub(super) enum SaleCode {
    UnknownSale = -1,
    Refilling = -2,
}

/// What reserve.lua decided for one buyer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[cfg_attr(test, derive(strum::IntoStaticStr, strum::VariantArray))]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[repr(i64)]
pub(super) enum ReserveCode {
    Reserved = 0,
    Repeat = 1,
    RepeatEnded = 2,
    Mismatch = 3,
    AtLimit = 4,
    NotStarted = 5,
    Ended = 6,
    WrongKey = 7,
    LevelTooLow = 8,
    SoldOut = 9,
    TooFewLeft = 10,
    Limited = 11,
    Paused = 12,
    BadUnits = 13,
    Lapsed = 14,
    PassInvalid = 15,
    OpenLoan = 16,
    UnderWay = 17,
    Borrow = 18,
}

/// What lend.lua decided for one loan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[cfg_attr(test, derive(strum::IntoStaticStr, strum::VariantArray))]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[repr(i64)]
pub(super) enum LendCode {
    NotLending = -3,
    Held = 0,
    No = 1,
}

/// What move_loan.lua decided for one loan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[cfg_attr(test, derive(strum::IntoStaticStr, strum::VariantArray))]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[repr(i64)]
pub(super) enum MoveCode {
    Reserved = 0,
    SoldOut = 9,
    TooFewLeft = 10,
    Borrow = 18,
    Lost = 19,
    NotOpen = 20,
}

/// What bar_loan.lua found under one loan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[cfg_attr(test, derive(strum::IntoStaticStr, strum::VariantArray))]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[repr(i64)]
pub(super) enum BarCode {
    Barred = 0,
    Held = 1,
    Ended = 2,
}

/// What answer_challenge.lua did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[cfg_attr(test, derive(strum::IntoStaticStr, strum::VariantArray))]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[repr(i64)]
pub(super) enum AnswerCode {
    Spent = 0,
    SpentBefore = 1,
    Expired = 2,
}

/// What acquire_permits.lua decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[cfg_attr(test, derive(strum::IntoStaticStr, strum::VariantArray))]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[repr(i64)]
pub(super) enum AcquireCode {
    Granted = 1,
    Refused = -1,
    InvalidRequest = -2,
}

/// What wait_in_line.lua decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[cfg_attr(test, derive(strum::IntoStaticStr, strum::VariantArray))]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[repr(i64)]
pub(super) enum WaitCode {
    Granted = 1,
    Wait = 0,
    TooLate = -1,
    InvalidRequest = -2,
    LineFull = -3,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use strum::VariantArray;

    use super::*;

    type Codes = BTreeMap<String, i64>;

    /// The codes of an enum, by their names.
    fn of_enum<C: VariantArray + Copy + Into<&'static str>>(number: fn(C) -> i64) -> Codes {
        C::VARIANTS.iter().map(|code| ((*code).into().to_owned(), number(*code))).collect()
    }

    /// The lines `--   code NUMBER NAME …` of a script's header.
    fn of_header(script: &str) -> Codes {
        let header = script.lines().map_while(|line| line.strip_prefix("--"));
        let rows = header.filter_map(|line| line.trim_start().strip_prefix("code "));
        let code = |row: &str| {
            let mut words = row.split_whitespace();
            let number = words.next().unwrap().parse().unwrap();
            (words.next().unwrap().to_owned(), number)
        };
        rows.map(code).collect()
    }

    /// The constants of a script: `local NAME, NAME = NUMBER, NUMBER`.
    fn of_constants(script: &str) -> Codes {
        let lines = script.lines().filter_map(|line| line.strip_prefix("local ")?.split_once(" = "));
        let pairs = lines.flat_map(|(names, values)| names.split(", ").zip(values.split(", ")));
        pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
    }

    #[test]
    fn the_codes_of_each_script_are_those_of_its_enum() {
        let sale = of_enum(|code: SaleCode| code as i64);
        let reserve = of_enum(|code: ReserveCode| code as i64);
        let lend = of_enum(|code: LendCode| code as i64);
        let moved = of_enum(|code: MoveCode| code as i64);
        let bar = of_enum(|code: BarCode| code as i64);
        let answer = of_enum(|code: AnswerCode| code as i64);
        let acquire = of_enum(|code: AcquireCode| code as i64);
        let wait = of_enum(|code: WaitCode| code as i64);
        for (name, script, codes) in [
            ("sale_begin", include_str!("../../lua/sale_begin.lua"), sale),
            ("reserve", include_str!("../../lua/reserve.lua"), reserve),
            ("lend", include_str!("../../lua/lend.lua"), lend),
            ("move_loan", include_str!("../../lua/move_loan.lua"), moved),
            ("bar_loan", include_str!("../../lua/bar_loan.lua"), bar),
            ("answer_challenge", include_str!("../../lua/answer_challenge.lua"), answer),
            ("acquire_permits", include_str!("../../lua/acquire_permits.lua"), acquire),
            ("wait_in_line", include_str!("../../lua/wait_in_line.lua"), wait),
        ] {
            assert_eq!(of_header(script), codes, "the header of {name}.lua");
            let mut constants = of_constants(script);
            constants.retain(|name, _| codes.contains_key(name));
            assert_eq!(constants, codes, "the constants of {name}.lua");
        }
    }

    #[test]
    fn a_number_that_is_no_code_is_none() {
        assert_eq!(ReserveCode::from_repr(19), None);
        assert_eq!(WaitCode::from_repr(-3), Some(WaitCode::LineFull));
    }
}
