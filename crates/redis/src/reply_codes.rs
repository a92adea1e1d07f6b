//! The reply codes of the Lua scripts. The test compares these enums with the headers and the constants of the scripts.

use strum::FromRepr;

/// The script did not touch the sale (sale_begin.lua).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromRepr)]
#[repr(i64)]
pub(super) enum SaleCode {
    UnknownSale = -1,
    Refilling = -2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromRepr)]
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromRepr)]
#[repr(i64)]
pub(super) enum LendCode {
    NotLending = -3,
    Held = 0,
    No = 1,
}

/// What move_loan.lua did with one loan that its lender had refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromRepr)]
#[repr(i64)]
pub(super) enum MoveCode {
    /// The home shard has given its own units.
    Reserved = 0,
    SoldOut = 9,
    TooFewLeft = 10,
    Borrow = 18,
    /// The order has another loan now, or none.
    Lost = 19,
    NotOpen = 20,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromRepr)]
#[repr(i64)]
pub enum BarCode {
    Barred = 0,
    Held = 1,
    Ended = 2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromRepr)]
#[repr(i64)]
pub(super) enum AnswerCode {
    Spent = 0,
    SpentBefore = 1,
    Expired = 2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromRepr)]
#[repr(i64)]
pub(super) enum AcquireCode {
    Granted = 1,
    Refused = -1,
    InvalidRequest = -2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromRepr)]
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
    use std::fmt::Debug;

    use super::*;
    use crate::scripts::RESERVE_PARTS;

    /// Codes by their names, without case and underscores.
    type Codes = BTreeMap<String, i64>;

    fn name(text: &str) -> String {
        text.replace('_', "").to_lowercase()
    }

    fn of_enum<C: Debug>(code: fn(i64) -> Option<C>) -> Codes {
        (-99..=99).filter_map(|number| Some((name(&format!("{:?}", code(number)?)), number))).collect()
    }

    /// The lines `--   code NUMBER NAME …` of a script's header.
    fn of_header(script: &str) -> Codes {
        let header = script.lines().map_while(|line| line.strip_prefix("--"));
        let rows = header.filter_map(|line| line.trim_start().strip_prefix("code "));
        let code = |row: &str| {
            let mut words = row.split_whitespace();
            let number = words.next().unwrap().parse().unwrap();
            (name(words.next().unwrap()), number)
        };
        rows.map(code).collect()
    }

    /// The constants of a script: `local NAME, NAME = NUMBER, NUMBER`.
    fn of_constants(script: &str) -> Codes {
        let lines = script.lines().filter_map(|line| line.strip_prefix("local ")?.split_once(" = "));
        let pairs = lines.flat_map(|(names, values)| names.split(", ").zip(values.split(", ")));
        pairs.filter_map(|(constant, value)| Some((name(constant), value.parse().ok()?))).collect()
    }

    #[test]
    fn the_codes_of_each_script_are_those_of_its_enum() {
        let reserve = [include_str!("../../../lua/reserve.lua"), RESERVE_PARTS].concat();
        for (script, codes) in [
            (include_str!("../../../lua/sale_begin.lua"), of_enum(SaleCode::from_repr)),
            (&reserve, of_enum(ReserveCode::from_repr)),
            (include_str!("../../../lua/lend.lua"), of_enum(LendCode::from_repr)),
            (include_str!("../../../lua/move_loan.lua"), of_enum(MoveCode::from_repr)),
            (include_str!("../../../lua/bar_loan.lua"), of_enum(BarCode::from_repr)),
            (include_str!("../../../lua/answer_challenge.lua"), of_enum(AnswerCode::from_repr)),
            (include_str!("../../../lua/acquire_permits.lua"), of_enum(AcquireCode::from_repr)),
            (include_str!("../../../lua/wait_in_line.lua"), of_enum(WaitCode::from_repr)),
        ] {
            assert_eq!(of_header(script), codes, "the header");
            let mut constants = of_constants(script);
            constants.retain(|name, _| codes.contains_key(name));
            assert_eq!(constants, codes, "the constants");
        }
    }
}
