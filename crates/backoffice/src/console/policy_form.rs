//! The fields of a policy's form, one set for each algorithm, and the picture of its last hour.

use std::ops::Range;

use super::language::Text;
use seckill_domain::limiter::{AlgorithmKind, ParameterBounds, Parameters};
use seckill_domain::policy::{Name, Policy, WhenDown};
use seckill_domain::policy_preview::RecordedMinute;

pub(crate) struct Form {
    pub(crate) algorithm: &'static str,
    pub(crate) parameters: Vec<NumberField>,
    pub(crate) range: Vec<NumberField>,
    pub(crate) apps: String,
    pub(crate) key: String,
    pub(crate) spread: bool,
    pub(crate) excess: String,
    pub(crate) when_down: [WhenDownChoice; 3],
    pub(crate) breaker: String,
}

pub(crate) struct NumberField {
    pub(crate) name: &'static str,
    pub(crate) label: Text,
    pub(crate) value: Option<i64>,
    pub(crate) least: i64,
    pub(crate) most: i64,
    pub(crate) required: bool,
    /// Whether there may be no limit, which the API writes as -1.
    pub(crate) may_be_none: bool,
}

pub(crate) struct WhenDownChoice {
    pub(crate) value: &'static str,
    pub(crate) label: Text,
    pub(crate) selected: bool,
}

impl Form {
    /// `apps` are the applications of a new policy. Another algorithm than the policy's begins with the parameters that both have.
    pub(crate) fn new(kind: AlgorithmKind, apps: &[Name], policy: Option<&Policy>) -> Self {
        let terms = policy.map(|policy| &policy.terms);
        let given = terms.map_or_else(Parameters::default, |terms| terms.algorithm.parameters());
        let range = terms.and_then(|terms| terms.range);
        let when_down = terms.map_or(WhenDown::Closed, |terms| terms.when_down);
        let choice =
            |value: WhenDown, label| WhenDownChoice { value: value.as_str(), label, selected: value == when_down };
        let of_range = |name, label, value, most| NumberField {
            name,
            label,
            value,
            least: 1,
            most,
            required: false,
            may_be_none: false,
        };
        let most = kind.threshold_max();
        let apps: Vec<&str> = apps.iter().map(Name::as_str).collect();
        Self {
            algorithm: kind.as_str(),
            parameters: kind
                .bounds()
                .into_iter()
                .filter_map(|(name, bounds)| parameter(name, bounds, &given))
                .collect(),
            range: vec![
                of_range("floor", Text { en: "Least threshold", zh: "最小阈值" }, range.map(|range| range.floor), most),
                of_range(
                    "ceiling",
                    Text { en: "Greatest threshold", zh: "最大阈值" },
                    range.map(|range| range.ceiling),
                    most,
                ),
                of_range(
                    "target_ms",
                    Text { en: "Target time of a call, in ms", zh: "单次调用的目标时间（毫秒）" },
                    range.and_then(|range| range.target_ms),
                    3_600_000,
                ),
            ],
            apps: apps.join("\n"),
            key: terms.map(|terms| terms.key.clone()).unwrap_or_default(),
            spread: terms.is_some_and(|terms| terms.spread),
            excess: terms.map_or_else(|| "reject".to_owned(), |terms| terms.excess.to_string()),
            when_down: [
                choice(WhenDown::Closed, Text { en: "closed: refuse", zh: "closed：拒绝" }),
                choice(WhenDown::Open, Text { en: "open: grant", zh: "open：放行" }),
                choice(
                    WhenDown::Local,
                    Text {
                        en: "local: each instance grants its share", zh: "local：每个实例放行自己的份额"
                    },
                ),
            ],
            breaker: terms
                .and_then(|terms| terms.breaker)
                .and_then(|breaker| serde_json::to_string(&breaker).ok())
                .unwrap_or_default(),
        }
    }
}

fn parameter(name: &'static str, bounds: ParameterBounds, given: &Parameters) -> Option<NumberField> {
    let (label, value) = match name {
        "limit" => {
            (Text { en: "Limit: permits in a window, or at once", zh: "限额：每个窗口或同时的许可数" }, given.limit)
        }
        "window_ms" => (Text { en: "Window, in ms", zh: "窗口（毫秒）" }, given.window_ms),
        "rate" => (Text { en: "Rate: permits in each window", zh: "速率：每个窗口的许可数" }, given.rate),
        "capacity" => (Text { en: "Capacity: permits that the bucket holds", zh: "容量：桶中许可数" }, given.capacity),
        _ => (
            Text {
                en: "Lease: when a permit that is not given back is free again, in ms",
                zh: "租期：未归还的许可多久后释放（毫秒）",
            },
            given.lease_ms,
        ),
    };
    let (least, most, required, may_be_none) = match bounds {
        ParameterBounds::Unused => return None,
        ParameterBounds::Optional(least, most) => (least, most, false, false),
        ParameterBounds::Required(least, most) => (least, most, true, false),
        ParameterBounds::Limit(most) => (0, most, true, true),
    };
    Some(NumberField { name, label, value, least, most, required, may_be_none })
}

/// The calls of the last hour, as bars: one a minute.
pub(crate) struct Hour {
    pub(crate) calls: u64,
    pub(crate) refused: u64,
    pub(crate) bars: Vec<Bar>,
}

/// A bar, in the units of a picture of 600 by 100.
pub(crate) struct Bar {
    pub(crate) x: i64,
    pub(crate) granted_y: u64,
    pub(crate) granted_height: u64,
    pub(crate) refused_y: u64,
    pub(crate) refused_height: u64,
}

impl Hour {
    const HEIGHT: u64 = 100;
    const WIDTH: i64 = 10;

    pub(crate) fn new(shown: Range<i64>, minutes: &[RecordedMinute]) -> Self {
        let most = minutes.iter().map(RecordedMinute::calls).max().unwrap_or(0).max(1);
        // Wide enough for any count.
        let height =
            |n: u64| u64::try_from(u128::from(n) * u128::from(Self::HEIGHT) / u128::from(most)).unwrap_or(Self::HEIGHT);
        let bars = minutes.iter().map(|minute| {
            let (refused_height, both) = (height(minute.refused), height(minute.calls()));
            Bar {
                x: (minute.minute - shown.start) * Self::WIDTH,
                granted_y: Self::HEIGHT - (both - refused_height),
                granted_height: both - refused_height,
                refused_y: Self::HEIGHT - both,
                refused_height,
            }
        });
        let sum = |count: fn(&RecordedMinute) -> u64| minutes.iter().map(count).fold(0, u64::saturating_add);
        Self { calls: sum(RecordedMinute::calls), refused: sum(|minute| minute.refused), bars: bars.collect() }
    }
}
