//! The terms of a sale to plan, as a manager sends them.

use serde::Deserialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::AdminError;
use seckill_domain::captcha::CaptchaKind;
use seckill_domain::currency::Currency;
use seckill_domain::ids::{Invalid, Units};
use seckill_domain::json_object;
use seckill_domain::sale::{NewSale, Wave};
use seckill_domain::shards::ShardCount;
use seckill_domain::stock::Stock;

/// Waves of one sale that can be planned: more than a page shows at once.
const WAVES_MAX: usize = 100;
const LASTS_MS: i64 = 3_600_000;
/// Programs that count with doubles count exactly up to here.
const TIME_MAX: i64 = 9_007_199_254_740_991;

/// A sale to plan.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlanForm {
    /// The product's name. The product is made where it is missing.
    #[schema(
        max_length = 200,
        pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]*[^\\s\\x00-\\x1F\\x7F-\\x9F][^\\x00-\\x1F\\x7F-\\x9F]*$"
    )]
    product: String,
    #[schema(minimum = 0, maximum = 100_000_000_000_i64)]
    price_cents: i64,
    /// The setting `payments.currency` by default. It can never be changed.
    currency: Option<Currency>,
    /// Units; -1 without a limit.
    #[schema(minimum = -1, maximum = 1_000_000_000_000_i64)]
    stock: i64,
    /// Units that one buyer may have; 1 by default.
    #[schema(minimum = 1, maximum = 10_000)]
    per_user: Option<u64>,
    /// At once by default.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    starts_at_ms: Option<i64>,
    /// An hour after the start by default.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    ends_at_ms: Option<i64>,
    /// Seconds to pay; 900 by default.
    #[schema(minimum = 1, maximum = 2_592_000)]
    pay_within_s: Option<i64>,
    /// The least level of a buyer; 0 by default.
    #[schema(minimum = 0, maximum = 2_147_483_647)]
    min_level: Option<i64>,
    /// `none` by default.
    captcha: Option<CaptchaKind>,
    /// Into how many parts the stock is divided; 1 by default. It can never be changed.
    #[schema(minimum = 1, maximum = 64)]
    shards: Option<u64>,
    /// Whether the units of refunded orders are not for sale again; false by default.
    keep_refunded: Option<bool>,
    /// Parts of the stock that go on sale after the start. Their units are part of `stock`.
    #[serde(default, deserialize_with = "json_object::list")]
    #[schema(max_items = 100)]
    waves: Vec<WaveForm>,
    /// The draft that this sale was. It is removed in the same step.
    #[schema(
        value_type = Option<String>,
        pattern = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
    )]
    pub(super) draft_id: Option<Uuid>,
}

/// Units that go on sale some time after the start.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WaveForm {
    #[schema(minimum = 0, maximum = 4_294_967_295_i64)]
    after_s: u32,
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    units: u32,
}

impl PlanForm {
    pub(super) fn new_sale(self, now_ms: i64, currency: Currency) -> Result<NewSale, AdminError> {
        if self.waves.len() > WAVES_MAX {
            return Err(Invalid::new("waves", "must be at most 100").into());
        }
        for (at, field) in [(self.starts_at_ms, "starts_at_ms"), (self.ends_at_ms, "ends_at_ms")] {
            if at.is_some_and(|at| !(0..=TIME_MAX).contains(&at)) {
                return Err(Invalid::new(field, "must be 0 to 9007199254740991").into());
            }
        }
        let wave = |wave: WaveForm| match i32::try_from(wave.units) {
            Ok(1..) => Ok(Wave { after_ms: i64::from(wave.after_s) * 1000, units: wave.units }),
            _ => Err(Invalid::new("waves", "units must be 1 to 2147483647")),
        };
        let per_user = Units::parse(self.per_user.unwrap_or(1));
        let (stock, shards) = (Stock::parse(self.stock)?, ShardCount::parse(self.shards.unwrap_or(1))?);
        let starts_at_ms = self.starts_at_ms.unwrap_or(now_ms);
        let ends_at_ms = self.ends_at_ms.unwrap_or(starts_at_ms.saturating_add(LASTS_MS));
        let new = NewSale {
            product: self.product,
            price_cents: self.price_cents,
            currency: self.currency.unwrap_or(currency),
            stock,
            per_user: per_user.map_err(|wrong| Invalid { field: "per_user", ..wrong })?,
            starts_in_ms: starts_at_ms.saturating_sub(now_ms),
            ends_in_ms: ends_at_ms.saturating_sub(now_ms),
            pay_within_ms: self.pay_within_s.unwrap_or(900).saturating_mul(1000),
            refund_returns_stock: !self.keep_refunded.unwrap_or(false),
            min_level: self.min_level.unwrap_or(0),
            captcha: self.captcha.unwrap_or_default(),
            shards,
            waves: self.waves.into_iter().map(wave).collect::<Result<_, _>>()?,
        };
        if ends_at_ms <= now_ms {
            return Err(AdminError::Unworkable(Invalid::new("ends_at_ms", "must be in the future")));
        }
        new.check().map_err(as_the_api_names_it)
    }
}

fn as_the_api_names_it(wrong: Invalid) -> AdminError {
    let unworkable = |field, problem| AdminError::Unworkable(Invalid::new(field, problem));
    let renamed = |field| Invalid { field, ..wrong.clone() };
    match wrong.field {
        "starts-in" => unworkable("starts_at_ms", "and ends_at_ms must be within ten years of now"),
        "ends-in" => unworkable("ends_at_ms", "must be later than starts_at_ms"),
        "wave" => AdminError::Unworkable(renamed("waves")),
        "price-cents" => renamed("price_cents").into(),
        "per-user" => renamed("per_user").into(),
        "min-level" => renamed("min_level").into(),
        "pay-within" => renamed("pay_within_s").into(),
        _ => wrong.into(),
    }
}
