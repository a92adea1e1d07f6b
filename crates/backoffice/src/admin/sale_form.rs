//! The terms of a sale to plan or to change, as a manager sends them.

use serde::Deserialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::AdminError;
use seckill_domain::captcha::CaptchaKind;
use seckill_domain::currency::Currency;
use seckill_domain::ids::{Invalid, Units};
use seckill_domain::json_object;
use seckill_domain::sale::{NewSale, Wave};
use seckill_domain::sale_change::{ChangeRefusal, SaleChange, SaleEnd, SaleStart};
use seckill_domain::shards::ShardCount;
use seckill_domain::stock::Stock;

/// Waves of one sale that can be planned: more than a page shows at once.
const WAVES_MAX: usize = 100;
/// Programs that count with doubles count exactly up to here.
pub(super) const TIME_MAX: i64 = 9_007_199_254_740_991;

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
    /// The setting `payments.currency` by default.
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
    /// Whether buyers see how far the sale is sold; false by default.
    show_stock: Option<bool>,
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

/// A change of a sale's terms. Absent fields keep their values.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangeForm {
    /// The product's name. The product is made where it is missing.
    #[schema(
        max_length = 200,
        pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]*[^\\s\\x00-\\x1F\\x7F-\\x9F][^\\x00-\\x1F\\x7F-\\x9F]*$"
    )]
    product: Option<String>,
    #[schema(minimum = 0, maximum = 100_000_000_000_i64)]
    price_cents: Option<i64>,
    currency: Option<Currency>,
    /// All units ever put up for sale, with future waves; -1 without a limit.
    #[schema(minimum = -1, maximum = 1_000_000_000_000_i64)]
    stock: Option<i64>,
    #[schema(minimum = 1, maximum = 10_000)]
    per_user: Option<u64>,
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    starts_at_ms: Option<i64>,
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    ends_at_ms: Option<i64>,
    #[schema(minimum = 1, maximum = 2_592_000)]
    pay_within_s: Option<i64>,
    #[schema(minimum = 0, maximum = 2_147_483_647)]
    min_level: Option<i64>,
    captcha: Option<CaptchaKind>,
    keep_refunded: Option<bool>,
    show_stock: Option<bool>,
    /// The waves to come, instead of all that are planned. Without it, they move with the start.
    #[serde(default, deserialize_with = "json_object::optional_list")]
    #[schema(max_items = 100)]
    waves: Option<Vec<WaveForm>>,
}

impl ChangeForm {
    pub(super) fn change(self) -> Result<SaleChange, AdminError> {
        if self.waves.as_ref().is_some_and(|waves| waves.len() > WAVES_MAX) {
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
        let per_user = self.per_user.map(Units::parse).transpose();
        Ok(SaleChange {
            product: self.product,
            price_cents: self.price_cents,
            currency: self.currency,
            stock: self.stock.map(Stock::parse).transpose()?,
            per_user: per_user.map_err(|wrong| Invalid { field: "per_user", ..wrong })?,
            starts: self.starts_at_ms.map(SaleStart::AtMs),
            ends: self.ends_at_ms.map(SaleEnd::AtMs),
            pay_within_ms: self.pay_within_s.map(|seconds| seconds.saturating_mul(1000)),
            refund_returns_stock: self.keep_refunded.map(|keep| !keep),
            show_stock: self.show_stock,
            min_level: self.min_level,
            captcha: self.captcha,
            shards: None,
            waves: self.waves.map(|waves| waves.into_iter().map(wave).collect()).transpose()?,
        })
    }
}

impl PlanForm {
    pub(super) fn new_sale(self, now_ms: i64, currency: Currency) -> Result<NewSale, AdminError> {
        let stock = Stock::parse(self.stock)?;
        let shards = ShardCount::parse(self.shards.unwrap_or(1))?;
        let plain = NewSale::of_defaults(self.product, self.price_cents, self.currency.unwrap_or(currency), stock);
        let others = ChangeForm {
            per_user: self.per_user,
            starts_at_ms: self.starts_at_ms,
            ends_at_ms: self.ends_at_ms,
            pay_within_s: self.pay_within_s,
            min_level: self.min_level,
            captcha: self.captcha,
            keep_refunded: self.keep_refunded,
            show_stock: self.show_stock,
            waves: Some(self.waves),
            ..ChangeForm::default()
        };
        let others = others.change()?;
        let ends = others.ends.or(Some(SaleEnd::AfterStartMs(NewSale::LASTS_MS)));
        let new = SaleChange { ends, shards: Some(shards), ..others }.of(&plain, now_ms);
        if new.ends_in_ms <= 0 {
            return Err(AdminError::Unworkable(Invalid::new("ends_at_ms", "must be in the future")));
        }
        new.check().map_err(as_the_api_names_it)
    }
}

/// Why a sale is not changed, in the words of the API.
impl From<ChangeRefusal> for AdminError {
    fn from(refusal: ChangeRefusal) -> Self {
        match refusal {
            ChangeRefusal::Invalid(wrong) => as_the_api_names_it(wrong),
            other => Self::Conflict(other.to_string()),
        }
    }
}

fn as_the_api_names_it(wrong: Invalid) -> AdminError {
    let unworkable = |field, problem| AdminError::Unworkable(Invalid::new(field, problem));
    let renamed = |field| Invalid { field, ..wrong.clone() };
    match wrong.field {
        "starts-in" => unworkable("starts_at_ms", "and ends_at_ms must be within ten years of now"),
        "ends-in" => unworkable("ends_at_ms", "must be later than starts_at_ms"),
        "ends-at" => AdminError::Unworkable(renamed("ends_at_ms")),
        "wave" => AdminError::Unworkable(renamed("waves")),
        "price-cents" => renamed("price_cents").into(),
        "per-user" => renamed("per_user").into(),
        "min-level" => renamed("min_level").into(),
        "pay-within" => renamed("pay_within_s").into(),
        _ => wrong.into(),
    }
}
