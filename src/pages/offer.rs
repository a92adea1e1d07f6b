//! The data of a sale for search engines: schema.org's Product and Offer, as JSON-LD.

use serde_json::json;

use super::sale_view::SaleView;
use crate::domain::sale::SaleStatus;

/// The text of the data block, safe inside a `<script>` element. `origin` is the pages' own; empty if unknown.
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
