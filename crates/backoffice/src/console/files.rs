//! The console's own files, named by hashes of their content, as the files of the pages are.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};

use seckill_http::file_headers::{self, Kind};
use seckill_http::static_files::{AssetError, Assets, PICTURE, SCRIPT, STYLE, Source};

const FOLDER: &str = "/admin/assets/";
/// The files: name, type, content. `style.css` and the icon are the pages' own, so that the console looks like them.
const SOURCES: &[Source] = &[
    ("chart.js", SCRIPT, include_str!("../../../../frontend-static/console/chart.js")),
    ("console.css", STYLE, include_str!("../../../../frontend-static/console/console.css")),
    ("console.js", SCRIPT, include_str!("../../../../frontend-static/console/console.js")),
    ("fields.js", SCRIPT, include_str!("../../../../frontend-static/console/fields.js")),
    ("icon.svg", PICTURE, include_str!("../../../../frontend-static/icon.svg")),
    ("language.js", SCRIPT, include_str!("../../../../frontend-static/console/language.js")),
    ("live.css", STYLE, include_str!("../../../../frontend-static/console/live.css")),
    ("live.js", SCRIPT, include_str!("../../../../frontend-static/console/live.js")),
    ("money.js", SCRIPT, include_str!("../../../../frontend-static/console/money.js")),
    ("sale-form.js", SCRIPT, include_str!("../../../../frontend-static/console/sale-form.js")),
    ("time-filters.js", SCRIPT, include_str!("../../../../frontend-static/console/time-filters.js")),
    ("times.js", SCRIPT, include_str!("../../../../frontend-static/console/times.js")),
    ("style.css", STYLE, include_str!("../../../../frontend-static/style.css")),
];

pub struct Files {
    assets: Assets,
}

impl Files {
    /// The files of this program.
    pub fn embedded() -> Result<Self, AssetError> {
        Ok(Self { assets: Assets::of(FOLDER, SOURCES)? })
    }

    pub(crate) fn url(&self, name: &str) -> &str {
        self.assets.url(name)
    }
}

/// Serves a file. Its name changes with its content, so a copy may be kept for a year. It shows nothing of any account, so
/// nobody has to be signed in.
pub(crate) async fn asset(request: HttpRequest, files: Data<Files>) -> HttpResponse {
    let Some(asset) = files.assets.at(request.path()) else {
        return HttpResponse::NotFound().finish();
    };
    let mut response = HttpResponse::Ok();
    for header in file_headers::of(Kind::Hashed, "") {
        response.insert_header(header);
    }
    response.content_type(asset.content_type).body(asset.content.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER_OF_SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../frontend-static/console");

    fn templates() -> Vec<(String, String)> {
        let folder = std::fs::read_dir(FOLDER_OF_SOURCES).unwrap().map(|entry| entry.unwrap().path());
        let html = folder.filter(|path| path.extension().is_some_and(|ending| ending == "html"));
        html.map(|path| (path.display().to_string(), std::fs::read_to_string(path).unwrap())).collect()
    }

    #[test]
    fn every_file_is_served_and_every_name_that_a_template_uses_is_one() {
        let files = Files::embedded().unwrap();
        for entry in std::fs::read_dir(FOLDER_OF_SOURCES).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(name.ends_with(".html") || files.url(&name).starts_with(FOLDER), "{name} is not in SOURCES");
        }
        let mut used = 0;
        for (template, text) in templates() {
            for call in ["asset(\"", "files.url(\""] {
                for name in text.split(call).skip(1).filter_map(|rest| rest.split('"').next()) {
                    assert!(files.url(name).starts_with(FOLDER), "{template} uses {name}");
                    used += 1;
                }
            }
        }
        assert!(used >= 4);
    }

    /// The policy of the pages allows nothing inline, so that inline code would not work. And all text is escaped: no template takes
    /// any for HTML.
    #[test]
    fn no_template_has_a_script_a_style_or_a_handler_of_its_own() {
        for (template, text) in templates() {
            for wrong in ["<style", " style=", " onclick=", " onsubmit=", " onchange=", "javascript:", "safe", "escape"]
            {
                assert!(!text.contains(wrong), "{template} has {wrong}");
            }
            let scripts = text.split("<script").skip(1);
            assert!(scripts.into_iter().all(|script| script.contains(" src=\"")), "{template} has a script");
        }
    }
}
