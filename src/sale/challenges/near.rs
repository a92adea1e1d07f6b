//! The challenges to draw ahead: for sales that run or start soon.

use std::ops::Range;
use std::sync::Arc;

use super::pool::Wanted;
use crate::domain::captcha::CaptchaKind;
use crate::domain::sale::{Sale, SaleStatus};
use crate::sale::catalog::LiveSales;

/// Drawing begins this long before buyers can ask for a sale's challenges.
const DRAW_BEFORE_MS: i64 = 600_000;

/// The challenges to keep ready for these sales, valid in `while_ms` unless the sales change.
pub(super) struct Near {
    pub sales: Arc<LiveSales>,
    pub wanted: Wanted,
    pub while_ms: Range<i64>,
}

impl Near {
    /// Examines all sales. Buyers can ask for challenges from `opens_before_ms` before the start on.
    pub fn at(now_ms: i64, opens_before_ms: i64, sales: Arc<LiveSales>) -> Self {
        let (wanted, until_ms) = wanted_at(now_ms, opens_before_ms, sales.iter());
        Self { sales, wanted, while_ms: now_ms..until_ms }
    }
}

/// The kinds that are wanted now, and the next moment at which they may change.
fn wanted_at<'a>(now_ms: i64, opens_before_ms: i64, sales: impl Iterator<Item = &'a Sale>) -> (Wanted, i64) {
    let (mut wanted, mut until_ms) = (Wanted::default(), i64::MAX);
    for sale in sales {
        let is_wanted = match sale.captcha {
            CaptchaKind::Image => &mut wanted.images,
            CaptchaKind::Slider => &mut wanted.sliders,
            CaptchaKind::None | CaptchaKind::Work => continue,
        };
        let from_ms = sale.starts_at_ms - opens_before_ms - DRAW_BEFORE_MS;
        if sale.status == SaleStatus::Closed || now_ms >= sale.ends_at_ms {
            continue;
        }
        if now_ms >= from_ms {
            *is_wanted = true;
            until_ms = until_ms.min(sale.ends_at_ms);
        } else {
            until_ms = until_ms.min(from_ms);
        }
    }
    (wanted, until_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::sale::tests::sale;

    #[test]
    fn challenges_are_wanted_from_shortly_before_a_sale_until_its_end() {
        let sale = |captcha, starts_at_ms, status| Sale {
            captcha,
            starts_at_ms,
            ends_at_ms: starts_at_ms + 1_000,
            status,
            ..sale()
        };
        let sales = [
            sale(CaptchaKind::Image, 2_000_000, SaleStatus::Open),
            sale(CaptchaKind::Slider, 3_000_000, SaleStatus::Paused),
            sale(CaptchaKind::Slider, 1_000_000, SaleStatus::Closed),
            sale(CaptchaKind::Work, 1_000_000, SaleStatus::Open),
        ];
        let at = |now_ms| {
            let (wanted, until_ms) = wanted_at(now_ms, 120_000, sales.iter());
            ((wanted.images, wanted.sliders), until_ms)
        };
        let (image_from, slider_from) = (2_000_000 - 720_000, 3_000_000 - 720_000);
        assert_eq!(at(0), ((false, false), image_from));
        assert_eq!(at(image_from), ((true, false), 2_001_000));
        assert_eq!(at(2_001_000), ((false, false), slider_from));
        assert_eq!(at(slider_from), ((false, true), 3_001_000));
        assert_eq!(at(3_001_000), ((false, false), i64::MAX));
    }
}
