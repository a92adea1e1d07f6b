//! The challenges to draw ahead: for sales that run or start soon.

use super::pool::Wanted;
use crate::domain::captcha::CaptchaKind;
use crate::domain::sale::{Sale, SaleStatus};

/// Drawing begins this long before buyers can ask for a sale's challenges.
const DRAW_BEFORE_MS: i64 = 600_000;

/// The kinds that are wanted now. Buyers can ask for challenges from `opens_before_ms` before the start on.
pub(super) fn wanted_at<'a>(now_ms: i64, opens_before_ms: i64, sales: impl Iterator<Item = &'a Sale>) -> Wanted {
    let is_near = |sale: &&Sale| {
        let from_ms = sale.starts_at_ms - opens_before_ms - DRAW_BEFORE_MS;
        sale.status != SaleStatus::Closed && (from_ms..sale.ends_at_ms).contains(&now_ms)
    };
    let mut wanted = Wanted::default();
    for sale in sales.filter(is_near) {
        match sale.captcha {
            CaptchaKind::Image => wanted.images = true,
            CaptchaKind::Slider => wanted.sliders = true,
            CaptchaKind::None | CaptchaKind::Work => {}
        }
    }
    wanted
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
            let wanted = wanted_at(now_ms, 120_000, sales.iter());
            (wanted.images, wanted.sliders)
        };
        let (image_from, slider_from) = (2_000_000 - 720_000, 3_000_000 - 720_000);
        assert_eq!([at(0), at(image_from - 1)], [(false, false); 2]);
        assert_eq!([at(image_from), at(2_000_999)], [(true, false); 2]);
        assert_eq!(at(2_001_000), (false, false));
        assert_eq!([at(slider_from), at(3_000_999)], [(false, true); 2]);
        assert_eq!(at(3_001_000), (false, false));
    }
}
