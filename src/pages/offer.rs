//! What search engines read of a sale: schema.org's Product and Offer, as JSON-LD.

use serde_json::json;

use super::render::SaleView;
use crate::domain::sale::SaleStatus;

/// The text of the data block, which can stand in a `<script>` element as it is. `origin` is the pages' own; empty if it is not
/// known.
pub(super) fn of(sale: &SaleView, status: SaleStatus, origin: &str, currency: &str) -> String {
    let mut offer = json!({
        "@type": "Offer",
        "price": sale.price,
        "priceCurrency": currency,
        "availability": format!("https://schema.org/{}", availability(status)),
        "validFrom": sale.starts_at_iso,
        "validThrough": sale.ends_at_iso,
        "eligibleQuantity": { "@type": "QuantitativeValue", "minValue": 1, "maxValue": sale.per_user },
    });
    if !origin.is_empty() {
        offer["url"] = json!(format!("{origin}/sales/{}", sale.id));
    }
    let mut product =
        json!({ "@context": "https://schema.org", "@type": "Product", "name": sale.product, "offers": offer });
    if !sale.description.is_empty() {
        product["description"] = json!(sale.description);
    }
    if let Some(picture) = &sale.picture {
        product["image"] = json!([format!("{origin}{}", picture.large), format!("{origin}{}", picture.small)]);
    }
    // In a <script> element nothing but its end means anything to HTML. The others keep even careless programs from reading more.
    product.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// How far a static page can know it: what is sold out at the moment may come back.
fn availability(status: SaleStatus) -> &'static str {
    match status {
        SaleStatus::Open => "LimitedAvailability",
        SaleStatus::Paused => "OutOfStock",
        SaleStatus::Closed => "Discontinued",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::render::tests::{sale, site};
    use super::*;

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
