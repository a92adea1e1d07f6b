//! Files whose served names contain a hash of their content: scripts, style and icons of the pages and of the console. Caches may keep
//! them for ever, because changed content has a new name.

use std::collections::BTreeMap;

use bytes::Bytes;

pub const SCRIPT: &str = "text/javascript; charset=utf-8";
pub const STYLE: &str = "text/css; charset=utf-8";
pub const PICTURE: &str = "image/svg+xml";

pub type Source = (&'static str, &'static str, &'static str);

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

    /// Adds a file that names no other.
    #[must_use]
    pub fn with(mut self, name: &'static str, extension: &str, content_type: &'static str, content: Bytes) -> Self {
        let path = format!("{}{name}.{}.{extension}", self.folder, short_hash(&content));
        self.by_name.insert(name, Asset { path, content_type, content });
        self
    }

    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
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
pub fn named_in(text: &str) -> impl Iterator<Item = &str> {
    text.split("\"./").skip(1).filter_map(|rest| rest.split_once('"')).map(|(name, _)| name)
}

/// The first 16 hexadecimal digits of a content's hash: enough to distinguish all contents of one program.
pub fn short_hash(content: &[u8]) -> String {
    blake3::hash(content).to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_gives_a_new_name_to_the_file_and_to_all_that_name_it() {
        let build = |leaf| {
            let top = ("top.js", SCRIPT, "import \"./middle.js\"; new URL(\"./leaf.js\", import.meta.url);");
            Assets::of(
                "/assets/",
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
