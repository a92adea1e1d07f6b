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
        // Without a limit there are no waves, and those that were planned need not be taken back one by one.
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

/// What a sale's change depends on, besides its terms. `terms.waves` are those to come.
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

/// What a buyer agrees to. It never changes once it was bought, and never while somebody may be looking at it.
const AGREED: [&str; 7] = ["product", "price_cents", "currency", "per_user", "min_level", "captcha", "pay_within_ms"];
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
        if let Some(fixed) = AGREED.into_iter().chain([STARTS_AT]).find(|name| self.is_bought && differs(name)) {
            return Err(ChangeRefusal::Bought(fixed));
        }
        if let Some(shown) = AGREED.into_iter().find(|name| self.phase == SalePhase::Open && differs(name)) {
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
        let needs_refill = left != self.left || differences.keys().any(|name| !NOT_IN_REDIS.contains(&name.as_str()));
        Ok(AllowedChange { left, needs_keys: AGREED.into_iter().any(differs), needs_refill, differences, terms })
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
