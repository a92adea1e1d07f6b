//! The shop's name, logo and colours on its pages.

use std::fs;

use bytes::Bytes;

use seckill_config as config;
use seckill_domain::colour::Accent;
use seckill_domain::text::ShopName;
use seckill_http::static_files::{Assets, STYLE};

const LOGO_MAX_BYTES: usize = 100_000;
/// Under these names pages find the files.
const LOGO: &str = "logo";
const COLOURS: &str = "shop";

#[derive(Debug, Clone)]
pub struct Look {
    pub(crate) name: ShopName,
    pub(crate) name_zh: ShopName,
    logo: Option<Logo>,
    accent: Accent<false>,
    accent_dark: Accent<true>,
}

#[derive(Debug, Clone)]
struct Logo {
    extension: String,
    content_type: &'static str,
    content: Bytes,
}

/// Why there is no logo.
#[derive(Debug, thiserror::Error)]
pub enum BadLogo {
    #[error("the logo {0} (pages.logo) cannot be read")]
    Unreadable(String, #[source] std::io::Error),
    #[error("the logo {0} (pages.logo) must be a file .svg, .png, .jpg or .webp of at most {LOGO_MAX_BYTES} bytes")]
    Unfit(String),
}

impl Look {
    /// Reads the logo.
    ///
    /// # Errors
    /// The file cannot be read, or is no small picture.
    pub fn read(settings: &config::Pages) -> Result<Self, BadLogo> {
        let logo = (!settings.logo.is_empty()).then(|| Logo::read(&settings.logo)).transpose()?;
        let config::Pages { name, name_zh, accent, accent_dark, .. } = settings.clone();
        Ok(Self { name, name_zh, logo, accent, accent_dark })
    }

    /// The pages' files, with those of this shop.
    pub(crate) fn add_to(&self, assets: Assets) -> Assets {
        let Self { accent: light, accent_dark: dark, .. } = self;
        let of =
            |[colour, on, soft]: [String; 3]| format!("--accent: {colour}; --on-accent: {on}; --accent-soft: {soft};");
        let light = of([light.colour, light.on, light.soft].map(|colour| colour.to_string()));
        let dark = of([dark.colour, dark.on, dark.soft].map(|colour| colour.to_string()));
        let colours = format!(":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n");
        let assets = assets.with(COLOURS, "css", STYLE, colours.into());
        match &self.logo {
            Some(logo) => assets.with(LOGO, &logo.extension, logo.content_type, logo.content.clone()),
            None => assets,
        }
    }
}

impl Logo {
    fn read(path: &str) -> Result<Self, BadLogo> {
        let extension = path.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).unwrap_or_default();
        let content_type = match extension.as_str() {
            "svg" => "image/svg+xml",
            "png" => "image/png",
            "jpg" | "jpeg" => "image/jpeg",
            "webp" => "image/webp",
            _ => return Err(BadLogo::Unfit(path.to_owned())),
        };
        let content = fs::read(path).map_err(|error| BadLogo::Unreadable(path.to_owned(), error))?;
        if content.is_empty() || content.len() > LOGO_MAX_BYTES {
            return Err(BadLogo::Unfit(path.to_owned()));
        }
        Ok(Self { extension, content_type, content: content.into() })
    }
}
