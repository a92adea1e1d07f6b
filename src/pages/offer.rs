//! What search engines read of a sale: schema.org's Product and Offer, as JSON-LD.

use serde_json::json;

use super::sale_view::SaleView;
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
