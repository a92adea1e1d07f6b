//! The pages' own files: scripts, style and icon.

use seckill_http::static_files::{AssetError, Assets, PICTURE, SCRIPT, STYLE, Source};

const FOLDER: &str = "/assets/";
const SOURCES: [Source; 17] = [
    ("account.js", SCRIPT, include_str!("../../../frontend-static/account.js")),
    ("challenge.js", SCRIPT, include_str!("../../../frontend-static/challenge.js")),
    ("docs.js", SCRIPT, include_str!("../../../frontend-static/docs.js")),
    ("front.js", SCRIPT, include_str!("../../../frontend-static/front.js")),
    ("icon.svg", PICTURE, include_str!("../../../frontend-static/icon.svg")),
    ("list.js", SCRIPT, include_str!("../../../frontend-static/list.js")),
    ("order-list.js", SCRIPT, include_str!("../../../frontend-static/order-list.js")),
    ("orders-page.js", SCRIPT, include_str!("../../../frontend-static/orders-page.js")),
    ("orders.js", SCRIPT, include_str!("../../../frontend-static/orders.js")),
    ("page-state.js", SCRIPT, include_str!("../../../frontend-static/page-state.js")),
    ("pay-now.js", SCRIPT, include_str!("../../../frontend-static/pay-now.js")),
    ("reminder.js", SCRIPT, include_str!("../../../frontend-static/reminder.js")),
    ("sale-texts.js", SCRIPT, include_str!("../../../frontend-static/sale-texts.js")),
    ("sale.js", SCRIPT, include_str!("../../../frontend-static/sale.js")),
    ("sign-in.js", SCRIPT, include_str!("../../../frontend-static/sign-in.js")),
    ("style.css", STYLE, include_str!("../../../frontend-static/style.css")),
    ("work.js", SCRIPT, include_str!("../../../frontend-static/work.js")),
];

pub fn embedded() -> Result<Assets, AssetError> {
    Assets::of(FOLDER, &SOURCES)
}

#[cfg(test)]
mod tests {
    use seckill_http::static_files::{named_in, short_hash};

    use super::*;

    #[test]
    fn files_go_together_and_each_name_is_the_hash_of_its_final_content() {
        let assets = embedded().unwrap();
        assert_eq!(assets.all().count(), SOURCES.len());
        for asset in assets.all() {
            let text = std::str::from_utf8(&asset.content).unwrap();
            assert!(asset.path.contains(&format!(".{}.", short_hash(&asset.content))), "{}", asset.path);
            for name in named_in(text) {
                assert!(assets.at(&format!("/assets/{name}")).is_some(), "{} names {name}", asset.path);
            }
            // Other ways to name a file would not be rewritten.
            for other in ["'./", "`./", "/static/", "\"../"] {
                assert!(!text.contains(other), "{} has {other}", asset.path);
            }
            assert!(asset.content_type != STYLE || !text.contains("url("), "{}", asset.path);
            let imports = text.split("from \"").skip(1).chain(text.split("import \"").skip(1));
            assert!(imports.into_iter().all(|name| name.starts_with("./")), "{}", asset.path);
        }
    }
}
