//! Renders the pages from the templates in frontend-static. A page depends on the terms of its sales alone, neither on the visitor
//! nor on the time, so that the same sale always gives the same bytes.

use askama::Template;
use chrono::{DateTime, SecondsFormat, Utc};

use super::assets::{AssetError, Assets};
use super::offer;
use crate::domain::origin::Origin;
use crate::domain::picture::Picture;
use crate::domain::sale::{PlannedWave, Sale};

/// Characters of a description that search engines and shared links show.
const SUMMARY_MAX: usize = 160;

/// What the pages are told about where they are served.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The pages' own origin, if links and pictures are to name it.
    pub origin: Option<Origin>,
    /// The currency of prices (ISO 4217).
    pub currency: String,
    /// The origin of the API, if it is another one than the pages'.
    pub api: Option<Origin>,
}

/// What all pages share.
pub struct Site {
    pub assets: Assets,
    pub api: String,
    origin: String,
    currency: String,
}

#[derive(Template)]
#[template(path = "index.html")]
#[allow(dead_code)] // a template may leave some out
struct FrontPage<'a> {
    assets: &'a Assets,
    api: &'a str,
    origin: &'a str,
    currency: &'a str,
    sales: Vec<SaleView>,
}

#[derive(Template)]
#[template(path = "sale.html")]
#[allow(dead_code)] // a template may leave some out
struct SalePage<'a> {
    assets: &'a Assets,
    api: &'a str,
    origin: &'a str,
    currency: &'a str,
    sale: SaleView,
    picture: Option<PictureView>,
    offer: String,
}

/// A page that depends on nothing but the site.
macro_rules! plain_page {
    ($name:ident, $path:tt) => {
        #[derive(Template)]
        #[template(path = $path)]
        #[allow(dead_code)] // a template may leave some out
        struct $name<'a> {
            assets: &'a Assets,
            api: &'a str,
            origin: &'a str,
            currency: &'a str,
        }

        impl<'a> From<&'a Site> for $name<'a> {
            fn from(site: &'a Site) -> Self {
                Self { assets: &site.assets, api: &site.api, origin: &site.origin, currency: &site.currency }
            }
        }
    };
}
plain_page!(OrdersPage, "orders.html");
plain_page!(MissingPage, "missing.html");
plain_page!(DocsPage, "docs.html");

/// A sale as the templates show it.
#[derive(Clone)]
#[allow(dead_code)] // a template may leave some out
pub(super) struct SaleView {
    pub id: i64,
    pub product: String,
    pub description: String,
    /// The description in one short line; the product's name where there is none.
    pub summary: String,
    pub price_cents: i64,
    /// The price in the currency's main unit, such as `99.00`.
    pub price: String,
    pub starts_at_ms: i64,
    pub ends_at_ms: i64,
    pub starts_at_iso: String,
    pub ends_at_iso: String,
    pub per_user: u32,
    pub min_level: i64,
    pub captcha: String,
    pub waves: Vec<PlannedWave>,
    pub unlimited: bool,
    pub picture: Option<PictureView>,
}

/// A picture as the templates show it, with the addresses of its sizes.
#[derive(Clone)]
#[allow(dead_code)] // a template may leave some out
pub(super) struct PictureView {
    pub small: String,
    pub large: String,
    pub small_width: u32,
    pub small_height: u32,
    pub large_width: u32,
    pub large_height: u32,
    pub alt: String,
}

impl Site {
    /// The site of this program's files.
    ///
    /// # Errors
    /// The files do not go together, which a test excludes.
    pub fn new(settings: Settings) -> Result<Self, AssetError> {
        let text = |origin: Option<Origin>| origin.map(|origin| origin.to_string()).unwrap_or_default();
        Ok(Self {
            assets: Assets::embedded()?,
            api: text(settings.api),
            origin: text(settings.origin),
            currency: settings.currency,
        })
    }

    /// The page of these sales.
    ///
    /// # Errors
    /// The template cannot be rendered. Likewise below.
    pub fn front<'s>(&self, sales: impl IntoIterator<Item = &'s Sale>) -> askama::Result<String> {
        let sales = sales.into_iter().map(|sale| SaleView::new(sale, &self.currency)).collect();
        let Self { assets, api, origin, currency } = self;
        FrontPage { assets, api, origin, currency, sales }.render()
    }

    /// The page of a sale.
    pub fn sale(&self, sale: &Sale) -> askama::Result<String> {
        let view = SaleView::new(sale, &self.currency);
        let offer = offer::of(&view, sale.status, &self.origin, &self.currency);
        let Self { assets, api, origin, currency } = self;
        SalePage { assets, api, origin, currency, picture: view.picture.clone(), sale: view, offer }.render()
    }

    /// The page of a buyer's own orders.
    pub fn orders(&self) -> askama::Result<String> {
        OrdersPage::from(self).render()
    }

    /// The page at addresses where there is none.
    pub fn missing(&self) -> askama::Result<String> {
        MissingPage::from(self).render()
    }

    /// The page of the API's document.
    pub fn docs(&self) -> askama::Result<String> {
        DocsPage::from(self).render()
    }
}

impl SaleView {
    fn new(sale: &Sale, currency: &str) -> Self {
        Self {
            id: sale.id.get(),
            product: sale.product.clone(),
            description: sale.description.clone(),
            summary: summary(if sale.description.trim().is_empty() { &sale.product } else { &sale.description }),
            price_cents: sale.price_cents,
            price: price(sale.price_cents, currency),
            starts_at_ms: sale.starts_at_ms,
            ends_at_ms: sale.ends_at_ms,
            starts_at_iso: iso(sale.starts_at_ms),
            ends_at_iso: iso(sale.ends_at_ms),
            per_user: sale.per_user.get(),
            min_level: sale.min_level,
            captcha: sale.captcha.to_string(),
            waves: sale.waves.clone(),
            unlimited: sale.unlimited,
            picture: sale.picture.as_ref().map(PictureView::from),
        }
    }
}

impl From<&Picture> for PictureView {
    fn from(picture: &Picture) -> Self {
        Self {
            small: picture.small_path(),
            large: picture.large_path(),
            small_width: picture.small.width,
            small_height: picture.small.height,
            large_width: picture.large.width,
            large_height: picture.large.height,
            alt: picture.alt.clone(),
        }
    }
}

/// A text in one line, cut where it is too long.
fn summary(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= SUMMARY_MAX {
        return line;
    }
    let cut: String = line.chars().take(SUMMARY_MAX - 1).collect();
    format!("{}…", cut.trim_end())
}

/// A moment in UTC, such as `2026-01-31T08:00:00Z`.
fn iso(ms: i64) -> String {
    DateTime::<Utc>::from_timestamp_millis(ms).unwrap_or_default().to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// An amount of minor units in the currency's main unit. The currencies that are not divided by a hundred are those of ISO 4217.
pub fn price(minor_units: i64, currency: &str) -> String {
    let digits = match currency {
        "BIF" | "CLP" | "DJF" | "GNF" | "ISK" | "JPY" | "KMF" | "KRW" | "PYG" | "RWF" | "UGX" | "UYI" | "VND"
        | "VUV" | "XAF" | "XOF" | "XPF" => 0,
        "BHD" | "IQD" | "JOD" | "KWD" | "LYD" | "OMR" | "TND" => 3,
        _ => 2,
    };
    let unit = 10_i64.pow(digits);
    match digits {
        0 => minor_units.to_string(),
        _ => format!("{}.{:0width$}", minor_units / unit, minor_units % unit, width = digits as usize),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::domain::ids::{SaleId, Units};
    use crate::domain::picture::Size;
    use crate::domain::sale::SaleStatus;

    /// A sale with a picture, at a fixed time.
    pub fn sale(product: &str) -> Sale {
        let (small, large) = (Size { width: 480, height: 320 }, Size { width: 1200, height: 800 });
        Sale {
            id: SaleId::from_db(7),
            product_id: 1,
            product: product.into(),
            description: "A phone.".into(),
            picture: Some(Picture { hash: "0a".repeat(16), alt: "A phone".into(), small, large }),
            price_cents: 9_900,
            per_user: Units::ONE,
            min_level: 0,
            captcha: crate::domain::captcha::CaptchaKind::None,
            unlimited: false,
            shards: crate::domain::shards::ShardCount::ONE,
            starts_at_ms: 1_767_225_600_123,
            ends_at_ms: 1_767_229_200_000,
            pay_within_ms: 900_000,
            status: SaleStatus::Open,
            purchase_key: "the-real-key".into(),
            waiting_key: "the-waiting-key".into(),
            waves: vec![PlannedWave { after_s: 60, units: 5 }],
        }
    }

    pub fn site(origin: Option<&str>) -> Site {
        let origin = origin.map(|origin| origin.parse().unwrap());
        Site::new(Settings { origin, currency: "CNY".into(), api: None }).unwrap()
    }

    #[test]
    fn prices_have_the_digits_of_their_currency() {
        for (units, currency, text) in [
            (9_900, "CNY", "99.00"),
            (5, "EUR", "0.05"),
            (0, "USD", "0.00"),
            (9_900, "JPY", "9900"),
            (1_234, "KWD", "1.234"),
            (100_000_000_000, "CNY", "1000000000.00"),
        ] {
            assert_eq!(price(units, currency), text);
        }
    }

    #[test]
    fn a_summary_is_one_line_and_not_too_long() {
        assert_eq!(summary("  A phone.\nAnd  more. "), "A phone. And more.");
        let long = summary(&"手机 ".repeat(100));
        assert!(long.chars().count() <= SUMMARY_MAX && long.ends_with("手机…"), "{long}");
    }

    #[test]
    fn a_sale_gives_the_same_page_each_time_and_no_key_is_on_it() {
        let page = site(None).sale(&sale("Phone")).unwrap();
        assert_eq!(page, site(None).sale(&sale("Phone")).unwrap());
        assert!(!page.contains("-key"));
        for shown in ["Phone", "99.00", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", "data-sale=\"7\"", "-480.jpg"] {
            assert!(page.contains(shown), "{shown}");
        }
    }

    #[test]
    fn pages_name_only_files_that_exist() {
        let site = site(Some("https://shop.example"));
        let all = [site.front([&sale("Phone")]), site.sale(&sale("Phone")), site.orders(), site.missing(), site.docs()];
        for page in all.map(Result::unwrap) {
            let named: Vec<&str> = page.split("\"/assets/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
            assert!(!named.is_empty());
            for name in named {
                assert!(site.assets.at(&format!("/assets/{name}")).is_some(), "{name}");
            }
        }
    }

    /// What a manager types is shown as text, wherever it stands.
    #[test]
    fn names_cannot_leave_their_place() {
        let hostile = "</script><script>alert(1)</script><b a=\"'&quot;\">{{ 1 }}";
        let site = site(Some("https://shop.example"));
        let mut sale = sale(hostile);
        sale.description = hostile.to_owned();
        if let Some(picture) = &mut sale.picture {
            picture.alt = hostile.to_owned();
        }
        for page in [site.front([&sale]).unwrap(), site.sale(&sale).unwrap()] {
            for wrong in ["<script>", "alert(1)</script>", "<b a", "a=\"'"] {
                assert!(!page.contains(wrong), "{wrong}: {page}");
            }
        }
    }
}
