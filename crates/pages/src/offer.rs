//! The data of a sale for search engines: schema.org's Product and Offer, as JSON-LD.

use serde_json::json;

use super::show::iso;
use seckill_domain::sale::{Sale, SaleStatus};

/// The text of the data block, safe inside a `<script>` element.
pub(super) fn of(sale: &Sale, origin: &str) -> String {
    let mut offer = json!({
        "@type": "Offer",
        "price": sale.price(),
        "priceCurrency": sale.currency,
        "availability": format!("https://schema.org/{}", availability(sale.status)),
        "validFrom": iso(&sale.starts_at_ms),
        "validThrough": iso(&sale.ends_at_ms),
        "eligibleQuantity": { "@type": "QuantitativeValue", "minValue": 1, "maxValue": sale.per_user.get() },
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
        product["image"] =
            json!([format!("{origin}{}", picture.large_path()), format!("{origin}{}", picture.small_path())]);
    }
    // Only the end tag means anything to HTML in a `<script>` element. The other two signs are escaped against careless readers.
    product.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// As far as a static page can know: a sold-out sale may get units back.
fn availability(status: SaleStatus) -> &'static str {
    match status {
        SaleStatus::Open => "LimitedAvailability",
        SaleStatus::Paused => "OutOfStock",
        SaleStatus::Closed => "Discontinued",
    }
}
