//! Changes of a planned sale's terms, and their rules (protocol, rule 19).

use serde_json::{Map, Value, json};

use super::captcha::CaptchaKind;
use super::currency::Currency;
use super::ids::{Invalid, Units};
use super::sale::{NewSale, SalePhase, Wave};
use super::shards::ShardCount;
use super::stock::Stock;

/// A change of a sale's terms, or of a copy of them. A field of `None` stays as it is.
#[derive(Debug, Clone, Default)]
pub struct SaleChange {
    pub product: Option<String>,
    pub price_cents: Option<i64>,
    pub currency: Option<Currency>,
    /// All units ever put up for sale, with future waves.
    pub stock: Option<Stock>,
    pub per_user: Option<Units>,
    pub starts: Option<SaleStart>,
    pub ends: Option<SaleEnd>,
    pub pay_within_ms: Option<i64>,
    pub refund_returns_stock: Option<bool>,
    pub show_stock: Option<bool>,
    pub min_level: Option<i64>,
    pub captcha: Option<CaptchaKind>,
    /// It can never be changed: another number is refused.
    pub shards: Option<ShardCount>,
    /// The waves to come, instead of all that are planned.
    pub waves: Option<Vec<Wave>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaleStart {
    AtMs(i64),
    /// After now.
    InMs(i64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaleEnd {
    AtMs(i64),
    AfterStartMs(i64),
}

impl SaleChange {
    /// These terms with the change. Their times count from `now_ms`.
    pub fn of(&self, terms: &NewSale, now_ms: i64) -> NewSale {
        let starts_in_ms = match self.starts {
            Some(SaleStart::AtMs(at)) => at.saturating_sub(now_ms),
            Some(SaleStart::InMs(after)) => after,
            None => terms.starts_in_ms,
        };
        let ends_in_ms = match self.ends {
            Some(SaleEnd::AtMs(at)) => at.saturating_sub(now_ms),
            Some(SaleEnd::AfterStartMs(after)) => starts_in_ms.saturating_add(after),
            None => terms.ends_in_ms,
        };
        let stock = self.stock.unwrap_or(terms.stock);
        // A sale without a limit has no waves: the change to no limit removes the planned ones.
        let planned = if stock == Stock::Unlimited { Vec::new() } else { terms.waves.clone() };
        NewSale {
            product: self.product.clone().unwrap_or_else(|| terms.product.clone()),
            price_cents: self.price_cents.unwrap_or(terms.price_cents),
            currency: self.currency.unwrap_or(terms.currency),
            stock,
            per_user: self.per_user.unwrap_or(terms.per_user),
            starts_in_ms,
            ends_in_ms,
            pay_within_ms: self.pay_within_ms.unwrap_or(terms.pay_within_ms),
            refund_returns_stock: self.refund_returns_stock.unwrap_or(terms.refund_returns_stock),
            show_stock: self.show_stock.unwrap_or(terms.show_stock),
            min_level: self.min_level.unwrap_or(terms.min_level),
            captcha: self.captcha.unwrap_or(terms.captcha),
            shards: self.shards.unwrap_or(terms.shards),
            waves: self.waves.clone().unwrap_or(planned),
        }
    }
}

/// A sale as the rules of a change see it. `terms.waves` has only the waves that are not released.
#[derive(Debug, Clone)]
pub struct SaleStanding {
    pub terms: NewSale,
    pub phase: SalePhase,
    /// Whether it has orders, or purchases without an order.
    pub is_bought: bool,
    /// Units that no order has and no future wave brings.
    pub left: Stock,
    /// Units of purchases without an order.
    pub accepted: u64,
}

/// Why a sale is not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeRefusal {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("the sale is over; plan another one with its terms")]
    Over,
    #[error("{0} cannot be changed: the sale has been bought in")]
    Bought(&'static str),
    #[error("{0} can be changed only while nobody can buy: pause the sale first")]
    Open(&'static str),
    #[error("stock must be at least {0}: these units are sold, accepted or planned for waves")]
    TooLittle(u64),
}

/// A change that the rules allow.
#[derive(Debug, Clone)]
pub struct AllowedChange {
    pub terms: NewSale,
    pub left: Stock,
    /// The old and the new value of each term that differs, for the audit log. Empty: nothing changes.
    pub differences: Map<String, Value>,
    /// Pages that show the old terms must not be able to buy.
    pub needs_keys: bool,
    /// Whether Redis has anything of it.
    pub needs_refill: bool,
}

impl AllowedChange {
    pub fn starts(&self) -> bool {
        self.differences.contains_key(STARTS_AT)
    }

    pub fn ends(&self) -> bool {
        self.differences.contains_key(ENDS_AT)
    }

    pub fn waves(&self) -> bool {
        self.differences.contains_key(WAVES)
    }
}

/// The buyer's terms. They are fixed by the first purchase, and while the sale is open.
const BUYERS_TERMS: [&str; 7] =
    ["product", "price_cents", "currency", "per_user", "min_level", "captcha", "pay_within_ms"];
const STARTS_AT: &str = "starts_at_ms";
const ENDS_AT: &str = "ends_at_ms";
const WAVES: &str = "waves";
/// The stock is there as the units left.
const NOT_IN_REDIS: [&str; 4] = ["keep_refunded", "show_stock", "stock", WAVES];

impl SaleStanding {
    /// The rules of a change, and what it comes to.
    pub fn allows(&self, change: &SaleChange, now_ms: i64) -> Result<AllowedChange, ChangeRefusal> {
        let mut terms = change.of(&self.terms, now_ms).check()?;
        if terms.shards != self.terms.shards {
            return Err(Invalid::new("shards", "can never be changed").into());
        }
        terms.waves.sort_unstable_by_key(|wave| (wave.after_ms, wave.units));
        let differences = differences(&by_name(&self.terms, now_ms), &by_name(&terms, now_ms));
        if differences.is_empty() {
            return Ok(AllowedChange { terms, left: self.left, differences, needs_keys: false, needs_refill: false });
        }
        let differs = |name: &str| differences.contains_key(name);
        if self.phase == SalePhase::Ended {
            return Err(ChangeRefusal::Over);
        }
        if let Some(fixed) = BUYERS_TERMS.into_iter().chain([STARTS_AT]).find(|name| self.is_bought && differs(name)) {
            return Err(ChangeRefusal::Bought(fixed));
        }
        if let Some(shown) = BUYERS_TERMS.into_iter().find(|name| self.phase == SalePhase::Open && differs(name)) {
            return Err(ChangeRefusal::Open(shown));
        }
        if terms.ends_in_ms <= 0 {
            return Err(
                Invalid::new("ends-at", "must be in the future; a sale that shall end now can be closed").into()
            );
        }
        let is_past = |wave: &Wave| terms.starts_in_ms.saturating_add(wave.after_ms) <= 0;
        if differs(WAVES) && terms.waves.iter().any(is_past) {
            return Err(
                Invalid::new("wave", "must be later than now; units for sale at once are part of the stock").into()
            );
        }
        let left = self.left_after(&terms)?;
        // A start that has passed has published its key.
        let needs_keys = BUYERS_TERMS.into_iter().any(differs) || (differs(STARTS_AT) && self.terms.starts_in_ms <= 0);
        let needs_refill = left != self.left || differences.keys().any(|name| !NOT_IN_REDIS.contains(&name.as_str()));
        Ok(AllowedChange { left, needs_keys, needs_refill, differences, terms })
    }

    /// The units left under the new terms: more by what the total gains, and by what waves no longer hold back.
    fn left_after(&self, new: &NewSale) -> Result<Stock, ChangeRefusal> {
        let has_limit = |stock| matches!(stock, Stock::Units(_));
        if self.is_bought && has_limit(self.terms.stock) != has_limit(new.stock) {
            return Err(ChangeRefusal::Bought("stock"));
        }
        let Stock::Units(new_total) = new.stock else { return Ok(Stock::Unlimited) };
        let (Stock::Units(total), Stock::Units(left)) = (self.terms.stock, self.left) else {
            return Ok(Stock::Units(new_total.saturating_sub(new.held_back())));
        };
        let signed = |units: u64| i128::from(units);
        let more = signed(new_total) - signed(total) + signed(self.terms.held_back()) - signed(new.held_back());
        let left = signed(left) + more;
        match u64::try_from(signed(self.accepted) - left) {
            // More is never refused: a Redis without its memory may have promised too much.
            Ok(lacking @ 1..) if more < 0 => Err(ChangeRefusal::TooLittle(new_total + lacking)),
            _ => Ok(Stock::Units(u64::try_from(left).unwrap_or(0))),
        }
    }
}

/// The terms by the names of the API.
fn by_name(terms: &NewSale, now_ms: i64) -> Map<String, Value> {
    let waves: Vec<Value> =
        terms.waves.iter().map(|wave| json!({ "after_s": wave.after_ms / 1000, "units": wave.units })).collect();
    let named = [
        ("product", json!(terms.product)),
        ("price_cents", json!(terms.price_cents)),
        ("currency", json!(terms.currency)),
        ("stock", json!(terms.stock.as_i64())),
        ("per_user", json!(terms.per_user.get())),
        (STARTS_AT, json!(now_ms.saturating_add(terms.starts_in_ms))),
        (ENDS_AT, json!(now_ms.saturating_add(terms.ends_in_ms))),
        ("pay_within_ms", json!(terms.pay_within_ms)),
        ("keep_refunded", json!(!terms.refund_returns_stock)),
        ("show_stock", json!(terms.show_stock)),
        ("min_level", json!(terms.min_level)),
        ("captcha", json!(terms.captcha.as_str())),
        (WAVES, Value::Array(waves)),
    ];
    named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn differences(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let both = old.iter().zip(new.values()).filter(|((_, old), new)| old != new);
    both.map(|((name, old), new)| (name.clone(), json!({ "from": old, "to": new }))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_000_000_000;

    /// Ten units are left of 60: 20 come in a wave, 30 are sold; of the ten, three are accepted.
    fn standing(phase: SalePhase, is_bought: bool) -> SaleStanding {
        let plain = NewSale::of_defaults("Phone".into(), 100, "CNY".parse().unwrap(), Stock::Units(60));
        let waves = vec![Wave { after_ms: 600_000, units: 20 }];
        let terms = NewSale { starts_in_ms: -60_000, ends_in_ms: 3_600_000, waves, ..plain };
        let accepted = if is_bought { 3 } else { 0 };
        SaleStanding { terms, phase, is_bought, left: Stock::Units(10), accepted }
    }

    /// What each rule speaks of.
    fn changes() -> [(&'static str, SaleChange); 14] {
        let none = SaleChange::default;
        [
            ("product", SaleChange { product: Some("Lamp".into()), ..none() }),
            ("price_cents", SaleChange { price_cents: Some(101), ..none() }),
            ("currency", SaleChange { currency: Some("JPY".parse().unwrap()), ..none() }),
            ("per_user", SaleChange { per_user: Some(Units::parse(2).unwrap()), ..none() }),
            ("min_level", SaleChange { min_level: Some(1), ..none() }),
            ("captcha", SaleChange { captcha: Some(CaptchaKind::Work), ..none() }),
            ("pay_within_ms", SaleChange { pay_within_ms: Some(60_000), ..none() }),
            (STARTS_AT, SaleChange { starts: Some(SaleStart::InMs(60_000)), ..none() }),
            ("stock", SaleChange { stock: Some(Stock::Unlimited), ..none() }),
            (ENDS_AT, SaleChange { ends: Some(SaleEnd::AtMs(NOW_MS + 1)), ..none() }),
            ("keep_refunded", SaleChange { refund_returns_stock: Some(false), ..none() }),
            ("show_stock", SaleChange { show_stock: Some(true), ..none() }),
            (WAVES, SaleChange { waves: Some(Vec::new()), ..none() }),
            ("stock", SaleChange { stock: Some(Stock::Units(61)), ..none() }),
        ]
    }

    #[test]
    fn what_may_change_depends_on_purchases_and_on_the_phase() {
        // The names of the changes that are refused, in their order, for each phase: before the first purchase, and after it.
        let agreed = "product price_cents currency per_user min_level captcha pay_within_ms";
        let bought = format!("{agreed} starts_at_ms stock");
        let all: Vec<&str> = changes().iter().map(|(name, _)| *name).collect();
        let all = all.join(" ");
        for (phase, before, after) in [
            (SalePhase::Scheduled, "", bought.as_str()),
            (SalePhase::Paused, "", &bought),
            (SalePhase::Open, agreed, &bought),
            (SalePhase::Ended, &all, &all),
        ] {
            for (is_bought, expected) in [(false, before), (true, after)] {
                let refused =
                    |(_, change): &&(&str, SaleChange)| standing(phase, is_bought).allows(change, NOW_MS).is_err();
                let changes = changes();
                let refused: Vec<&str> = changes.iter().filter(refused).map(|(name, _)| *name).collect();
                assert_eq!(refused.join(" "), expected, "{phase:?}, bought: {is_bought}");
            }
        }
    }

    #[test]
    fn redis_and_keys_follow_what_they_know() {
        for (name, change) in changes() {
            let allowed = standing(SalePhase::Scheduled, false).allows(&change, NOW_MS).unwrap();
            assert!(allowed.differences.contains_key(name));
            assert_eq!(allowed.needs_keys, BUYERS_TERMS.contains(&name) || name == STARTS_AT, "{name}");
            assert_eq!(allowed.needs_refill, !["keep_refunded", "show_stock"].contains(&name), "{name}");
            // A repeat changes nothing, also in a sale that is over.
            let left = allowed.left;
            let after = SaleStanding { terms: allowed.terms, left, ..standing(SalePhase::Ended, true) };
            let repeated = SaleChange { starts: change.starts.map(|_| SaleStart::AtMs(NOW_MS + 60_000)), ..change };
            assert!(after.allows(&repeated, NOW_MS).unwrap().differences.is_empty(), "{name}");
        }
    }

    #[test]
    fn the_stock_is_never_less_than_what_is_sold_or_accepted() {
        let waves = |units: &[u32]| Some(units.iter().map(|units| Wave { after_ms: 600_000, units: *units }).collect());
        let change = |stock, waves| SaleChange { stock, waves, ..SaleChange::default() };
        let total = |units| Some(Stock::Units(units));
        // The units left, or the least total.
        for (change, expected) in [
            (change(total(61), None), Ok(11)),
            (change(total(53), None), Ok(3)),
            (change(total(52), None), Err(53)),
            (change(total(20), None), Err(53)),
            (change(None, waves(&[])), Ok(30)),
            (change(None, waves(&[10])), Ok(20)),
            (change(None, waves(&[20, 7])), Ok(3)),
            (change(None, waves(&[20, 8])), Err(61)),
            (change(total(33), waves(&[])), Ok(3)),
            (change(total(32), waves(&[])), Err(33)),
            (change(total(1_000), waves(&[900])), Ok(70)),
        ] {
            let left = standing(SalePhase::Open, true).allows(&change, NOW_MS);
            match expected {
                Ok(units) => assert_eq!(left.unwrap().left, Stock::Units(units), "{change:?}"),
                Err(least) => assert_eq!(left.unwrap_err(), ChangeRefusal::TooLittle(least), "{change:?}"),
            }
        }
        // A Redis that had lost its memory promised more than there is.
        let promised = SaleStanding { accepted: 40, ..standing(SalePhase::Open, true) };
        assert!(promised.allows(&change(total(61), None), NOW_MS).is_ok());
        let open = standing(SalePhase::Open, false);
        let unlimited = open.allows(&change(Some(Stock::Unlimited), None), NOW_MS).unwrap();
        assert!(unlimited.left == Stock::Unlimited && unlimited.terms.waves.is_empty());
        let unlimited = SaleStanding { terms: unlimited.terms, left: Stock::Unlimited, ..open };
        let limited = unlimited.allows(&change(total(50), waves(&[20])), NOW_MS).unwrap();
        assert_eq!(limited.left, Stock::Units(30));
    }

    #[test]
    fn times_count_from_now_from_the_start_or_from_nothing() {
        let times = |starts, ends| {
            let change = SaleChange { starts, ends, ..SaleChange::default() };
            let of = change.of(&standing(SalePhase::Scheduled, false).terms, NOW_MS);
            (of.starts_in_ms, of.ends_in_ms)
        };
        let (at, within) = (Some(SaleStart::AtMs(NOW_MS + 5)), Some(SaleStart::InMs(7)));
        assert_eq!(times(None, None), (-60_000, 3_600_000));
        assert_eq!(times(at, None), (5, 3_600_000));
        assert_eq!(times(within, Some(SaleEnd::AfterStartMs(10))), (7, 17));
        assert_eq!(times(None, Some(SaleEnd::AfterStartMs(10))), (-60_000, -59_990));
        assert_eq!(times(within, Some(SaleEnd::AtMs(NOW_MS + 9))), (7, 9));
    }

    #[test]
    fn ends_and_waves_are_in_the_future() {
        let open = standing(SalePhase::Open, false);
        let refused = |change: SaleChange| open.allows(&change, NOW_MS).unwrap_err().to_string();
        for at in [NOW_MS, NOW_MS - 1, NOW_MS - 59_000] {
            let ends = Some(SaleEnd::AtMs(at));
            assert!(refused(SaleChange { ends, ..SaleChange::default() }).contains("can be closed"), "{at}");
        }
        for after_ms in [0, 60_000] {
            let waves = Some(vec![Wave { after_ms, units: 1 }]);
            assert!(refused(SaleChange { waves, ..SaleChange::default() }).contains("later than now"), "{after_ms}");
        }
        let shards = Some(ShardCount::parse(2).unwrap());
        assert!(refused(SaleChange { shards, ..SaleChange::default() }).contains("never"));
    }
}
