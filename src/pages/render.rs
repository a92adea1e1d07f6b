//! Renders the pages from the templates in frontend-static. A page depends on the terms of its sales alone, neither on the visitor nor
//! on the time. So the same sale always gives the same bytes.

use askama::Template;

use super::assets::{AssetError, Assets};
use super::offer;
use super::sale_view::{PictureView, SaleView};
use crate::domain::origin::Origin;
use crate::domain::sale::Sale;

/// The origins and the currency that pages use.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The pages' own origin, if links and pictures need it.
    pub origin: Option<Origin>,
    /// The currency of prices (ISO 4217).
    pub currency: String,
    /// The origin of the API, if it is not the pages' own.
    pub api: Option<Origin>,
}

/// The parts that all pages share.
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

impl Site {
    /// The site of this program's files.
    ///
    /// # Errors
    /// The files are not consistent, which a test excludes.
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
    /// The template cannot be rendered. This also holds for the methods below.
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

    /// The page for unknown addresses.
    pub fn missing(&self) -> askama::Result<String> {
        MissingPage::from(self).render()
    }

    /// The page of the API's document.
    pub fn docs(&self) -> askama::Result<String> {
        DocsPage::from(self).render()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::ids::{SaleId, Units};
    use crate::domain::picture::{Picture, Size};
    use crate::domain::sale::{PlannedWave, SaleStatus};

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

    /// Text that a manager types is shown as text everywhere.
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

    /// The data block of a page, as a search engine finds it.
    fn block(page: &str) -> Value {
        let (_, rest) = page.split_once("<script type=\"application/ld+json\">").unwrap();
        serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
    }

    #[test]
    fn an_offer_says_price_time_and_address() {
        let page = site(Some("https://shop.example")).sale(&sale("Phone")).unwrap();
        let product = block(&page);
        assert_eq!((&product["@type"], &product["name"]), (&json!("Product"), &json!("Phone")));
        assert_eq!(product["image"][0], format!("https://shop.example/pictures/{}-1200.jpg", "0a".repeat(16)));
        let offer = &product["offers"];
        for (name, value) in [
            ("price", "99.00"),
            ("priceCurrency", "CNY"),
            ("availability", "https://schema.org/LimitedAvailability"),
            ("validFrom", "2026-01-01T00:00:00Z"),
            ("validThrough", "2026-01-01T01:00:00Z"),
            ("url", "https://shop.example/sales/7"),
        ] {
            assert_eq!(offer[name], value, "{name}");
        }
    }

    #[test]
    fn a_name_cannot_end_the_data_block() {
        let hostile = "</script><b>&amp;\"\\ \u{2028}";
        let product = block(&site(None).sale(&sale(hostile)).unwrap());
        assert_eq!(product["name"], hostile);
        assert!(product["offers"].get("url").is_none());
    }
}
