//! Renders the pages from the templates in frontend-static. A page depends on the terms of its sales alone, neither on the visitor nor
//! on the time. So the same sale always gives the same bytes.

use askama::Template;

use super::assets;
use super::look::Look;
use super::{offer, show};
use seckill_domain::currency::Currency;
use seckill_domain::origin::Origin;
use seckill_domain::sale::Sale;
use seckill_http::static_files::{AssetError, Assets};

#[derive(Debug, Clone)]
pub struct Settings {
    pub origin: Option<Origin>,
    pub api: Option<Origin>,
    /// The claims of a buyer's token with the buyer's id and level.
    pub id_claim: String,
    pub level_claim: String,
    pub look: Look,
}

/// Why pages cannot be made: this program's files are not consistent, which tests exclude.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    #[error(transparent)]
    Asset(#[from] AssetError),
    #[error("a page cannot be rendered: {0}")]
    Render(#[from] askama::Error),
}

/// The parts that all pages share. Unknown origins are empty.
pub(crate) struct Site {
    pub(crate) assets: Assets,
    pub(crate) api: String,
    pub(crate) origin: String,
    /// The digits of the currencies that do not have two, such as `JPY0 KWD3`.
    pub(crate) digits: String,
    pub(crate) id_claim: String,
    pub(crate) level_claim: String,
    pub(crate) name: String,
    pub(crate) name_zh: String,
}

#[derive(Template)]
#[template(path = "index.html")]
struct FrontPage<'a> {
    site: &'a Site,
    sales: Vec<&'a Sale>,
}

#[derive(Template)]
#[template(path = "sale.html")]
struct SalePage<'a> {
    site: &'a Site,
    sale: &'a Sale,
    offer: String,
}

#[derive(Template)]
#[template(path = "orders.html")]
struct OrdersPage<'a> {
    site: &'a Site,
}

#[derive(Template)]
#[template(path = "missing.html")]
struct MissingPage<'a> {
    site: &'a Site,
}

#[derive(Template)]
#[template(path = "docs.html")]
struct DocsPage<'a> {
    site: &'a Site,
}

impl Site {
    pub(crate) fn new(settings: Settings) -> Result<Self, PageError> {
        let others = Currency::all().filter(|currency| currency.digits() != 2);
        let digits: Vec<String> = others.map(|currency| format!("{currency}{}", currency.digits())).collect();
        let text = |origin: Option<Origin>| origin.map(|origin| origin.to_string()).unwrap_or_default();
        Ok(Self {
            name: settings.look.name.to_string(),
            name_zh: settings.look.name_zh.to_string(),
            assets: settings.look.add_to(assets::embedded()?),
            api: text(settings.api),
            origin: text(settings.origin),
            digits: digits.join(" "),
            id_claim: settings.id_claim,
            level_claim: settings.level_claim,
        })
    }

    pub(crate) fn front<'a>(&'a self, sales: impl IntoIterator<Item = &'a Sale>) -> Result<String, PageError> {
        Ok(FrontPage { site: self, sales: sales.into_iter().collect() }.render()?)
    }

    pub(crate) fn sale(&self, sale: &Sale) -> Result<String, PageError> {
        Ok(SalePage { site: self, sale, offer: offer::of(sale, &self.origin) }.render()?)
    }

    pub(crate) fn orders(&self) -> Result<String, PageError> {
        Ok(OrdersPage { site: self }.render()?)
    }

    pub(crate) fn missing(&self) -> Result<String, PageError> {
        Ok(MissingPage { site: self }.render()?)
    }

    pub(crate) fn docs(&self) -> Result<String, PageError> {
        Ok(DocsPage { site: self }.render()?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::look::BadLogo;
    use seckill_config as config;
    use seckill_domain::captcha::CaptchaKind;
    use seckill_domain::ids::{SaleId, Units};
    use seckill_domain::picture::{Picture, Size};
    use seckill_domain::sale::{PlannedWave, SaleStatus};
    use seckill_domain::shards::ShardCount;
    use seckill_domain::stock::Stock;

    fn sale(product: &str) -> Sale {
        let (small, large) = (Size { width: 480, height: 320 }, Size { width: 1200, height: 800 });
        Sale {
            id: SaleId::from_db(7),
            product_id: 1,
            product: product.into(),
            description: "A phone.".into(),
            picture: Some(Picture { hash: "0a".repeat(16), alt: "A phone".into(), small, large }),
            price_cents: 9_900,
            currency: "CNY".parse().unwrap(),
            starts_at_ms: 1_767_225_600_123,
            ends_at_ms: 1_767_229_200_000,
            purchase_key: "the-real-key".into(),
            waiting_key: "the-waiting-key".into(),
            terms_version: 0,
            blocks: seckill_domain::sale_blocks::SaleBlocks::default(),
            waves: vec![PlannedWave { after_s: 60, units: 5 }],
            per_user: Units::ONE,
            min_level: 0,
            captcha: CaptchaKind::None,
            total_stock: Stock::Units(10),
            show_stock: false,
            shards: ShardCount::ONE,
            pay_within_ms: 1000,
            status: SaleStatus::Open,
        }
    }

    fn look(logo: &str) -> Result<Look, BadLogo> {
        let (accent, accent_dark) = ("#0b6b3a".parse().unwrap(), "#ff8a70".parse().unwrap());
        let [name, name_zh] = ["Lamps & \"more\"", "灯"].map(|name| name.parse().unwrap());
        Look::read(&config::Pages { origin: None, name, name_zh, logo: logo.into(), accent, accent_dark })
    }

    fn site(origin: Option<&str>) -> Site {
        site_with(origin, "")
    }

    fn site_with(origin: Option<&str>, logo: &str) -> Site {
        let origin = origin.map(|origin| origin.parse().unwrap());
        let (id_claim, level_claim) = ("sub".into(), "https://shop.example/level".into());
        Site::new(Settings { origin, api: None, id_claim, level_claim, look: look(logo).unwrap() }).unwrap()
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
    fn every_page_has_the_name_and_the_colours_of_the_shop() {
        let (site, sale) = (site(None), sale("Phone"));
        let colours = site.assets.at(site.assets.url("shop")).unwrap();
        let css = std::str::from_utf8(&colours.content).unwrap();
        assert!(
            css.contains("--accent: #0b6b3a; --on-accent: #ffffff;")
                && css.contains("--accent: #ff8a70; --on-accent: #000000;")
        );
        for page in [site.front([&sale]), site.sale(&sale), site.orders(), site.missing()].map(Result::unwrap) {
            let (_, title) = page.split_once("<title").unwrap();
            let title = title.split_once("</title>").unwrap().0;
            assert!(title.ends_with("· Lamps &#38; &#34;more&#34;") && title.contains("· 灯\""), "{title}");
            assert!(page.contains(&colours.path) && !page.contains("Seckill"));
        }
    }

    #[test]
    fn a_logo_is_a_small_picture_before_the_name() {
        let icon = concat!(env!("CARGO_MANIFEST_DIR"), "/../../frontend-static/icon.svg");
        let site = site_with(None, icon);
        let logo = site.assets.at(site.assets.url("logo")).unwrap();
        assert!(logo.content_type == "image/svg+xml" && logo.path.starts_with("/assets/logo."));
        assert!(site.orders().unwrap().contains(&format!("<img src=\"{}\"", logo.path)));
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let bad = [manifest, "/none.svg", "logo", concat!(env!("CARGO_MANIFEST_DIR"), "/src")];
        assert!(bad.into_iter().all(|bad| look(bad).is_err()));
    }

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
        let hostile = "</script><b>&amp;\"\\ \u{2028}";
        let named = block(&site(None).sale(&sale(hostile)).unwrap());
        assert!(named["name"] == hostile && named["offers"].get("url").is_none());
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
}
