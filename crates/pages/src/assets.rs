//! The pages' own files: scripts, style and icon. The served name of a file contains a hash of its content. Caches may keep it for ever,
//! because changed content has a new name. The console's files are named the same way (`console::Files`).

use std::collections::BTreeMap;

use bytes::Bytes;

pub const SCRIPT: &str = "text/javascript; charset=utf-8";
pub const STYLE: &str = "text/css; charset=utf-8";
pub const PICTURE: &str = "image/svg+xml";

pub type Source = (&'static str, &'static str, &'static str);

const FOLDER: &str = "/assets/";
const SOURCES: [Source; 11] = [
    ("account.js", SCRIPT, include_str!("../../../frontend-static/account.js")),
    ("challenge.js", SCRIPT, include_str!("../../../frontend-static/challenge.js")),
    ("docs.js", SCRIPT, include_str!("../../../frontend-static/docs.js")),
    ("front.js", SCRIPT, include_str!("../../../frontend-static/front.js")),
    ("icon.svg", PICTURE, include_str!("../../../frontend-static/icon.svg")),
    ("list.js", SCRIPT, include_str!("../../../frontend-static/list.js")),
    ("orders.js", SCRIPT, include_str!("../../../frontend-static/orders.js")),
    ("sale.js", SCRIPT, include_str!("../../../frontend-static/sale.js")),
    ("sign-in.js", SCRIPT, include_str!("../../../frontend-static/sign-in.js")),
    ("style.css", STYLE, include_str!("../../../frontend-static/style.css")),
    ("work.js", SCRIPT, include_str!("../../../frontend-static/work.js")),
];

/// Why the files are not consistent.
#[derive(Debug, thiserror::Error)]
pub enum AssetError {
    #[error("{from} names ./{name}, and there is no such file")]
    Unknown { from: String, name: String },
}

#[derive(Debug, Clone)]
pub struct Asset {
    /// Its address: the folder and `NAME.HASH.EXTENSION`.
    pub path: String,
    pub content_type: &'static str,
    pub content: Bytes,
}

/// All files, by the names that pages and other files use for them.
#[derive(Debug)]
pub struct Assets {
    folder: &'static str,
    by_name: BTreeMap<&'static str, Asset>,
}

impl Assets {
    pub fn embedded() -> Result<Self, AssetError> {
        Self::of(FOLDER, &SOURCES)
    }

    /// Files that are served in this folder. The folder's address ends with a slash.
    pub fn of(folder: &'static str, sources: &[Source]) -> Result<Self, AssetError> {
        let mut assets = Self { folder, by_name: BTreeMap::new() };
        for (name, ..) in sources {
            assets.add("SOURCES", name, sources)?;
        }
        Ok(assets)
    }

    /// Adds a file, after the files that it names. Files cannot name each other, because a name depends on the names in the file.
    fn add(&mut self, from: &str, name: &str, sources: &[Source]) -> Result<(), AssetError> {
        if self.by_name.contains_key(name) {
            return Ok(());
        }
        let Some(&(name, content_type, source)) = sources.iter().find(|(known, ..)| *known == name) else {
            return Err(AssetError::Unknown { from: from.to_owned(), name: name.to_owned() });
        };
        let mut text = source.to_owned();
        for other in named_in(source) {
            self.add(name, other, sources)?;
            let hashed = self.url(other).trim_start_matches(self.folder);
            text = text.replace(&format!("\"./{other}\""), &format!("\"./{hashed}\""));
        }
        let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
        let path = format!("{}{stem}.{}.{extension}", self.folder, short_hash(text.as_bytes()));
        self.by_name.insert(name, Asset { path, content_type, content: text.into() });
        Ok(())
    }

    /// The address of a file. A test looks up every name that a page uses.
    pub fn url(&self, name: &str) -> &str {
        self.by_name.get(name).map_or("unknown", |asset| &asset.path)
    }

    pub fn all(&self) -> impl Iterator<Item = &Asset> {
        self.by_name.values()
    }

    pub fn at(&self, path: &str) -> Option<&Asset> {
        self.all().find(|asset| asset.path == path)
    }
}

/// The files that a file names: `"./NAME"`.
fn named_in(text: &str) -> impl Iterator<Item = &str> {
    text.split("\"./").skip(1).filter_map(|rest| rest.split_once('"')).map(|(name, _)| name)
}

/// The first 16 hexadecimal digits of a content's hash: enough to distinguish all contents of one program.
pub(crate) fn short_hash(content: &[u8]) -> String {
    blake3::hash(content).to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_go_together_and_each_name_is_the_hash_of_its_final_content() {
        let assets = Assets::embedded().unwrap();
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

    #[test]
    fn a_change_gives_a_new_name_to_the_file_and_to_all_that_name_it() {
        let build = |leaf| {
            let top = ("top.js", SCRIPT, "import \"./middle.js\"; new URL(\"./leaf.js\", import.meta.url);");
            Assets::of(
                FOLDER,
                &[top, ("middle.js", SCRIPT, "import \"./leaf.js\";"), ("leaf.js", SCRIPT, leaf), ("a.css", STYLE, "")],
            )
            .unwrap()
        };
        let (one, other) = (build("1"), build("2"));
        for name in ["top.js", "middle.js", "leaf.js"] {
            assert_ne!(one.url(name), other.url(name));
        }
        assert_eq!(one.url("a.css"), other.url("a.css"));
        let top = String::from_utf8(one.at(one.url("top.js")).unwrap().content.to_vec()).unwrap();
        assert!(
            ["middle.js", "leaf.js"].iter().all(|name| top.contains(one.url(name).trim_start_matches("/assets/"))),
            "{top}"
        );
    }
}
