//! Origins of web pages: scheme, host and port.

use std::fmt;
use std::str::FromStr;

use url::Url;

use super::ids::Invalid;

/// An origin as browsers write it in the header `Origin`, such as `https://shop.example`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(String);

impl Origin {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Origin {
    type Err = Invalid;

    /// Takes the exact spelling of browsers: no other would match a request. Origins stand in content policies, so they must not have
    /// signs with a meaning there.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b".:/-_[]".contains(&b));
        let url = Url::parse(text).ok().filter(|url| plain && matches!(url.scheme(), "http" | "https"));
        match url {
            Some(url) if url.origin().ascii_serialization() == text => Ok(Self(text.to_owned())),
            _ => Err(Invalid::new(
                "origin",
                "must be http:// or https://, a host in small letters, and a port unless it is the scheme's own, with nothing \
                 behind, such as https://shop.example",
            )),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_spelling_of_browsers_is_taken() {
        for good in
            ["https://shop.example", "http://127.0.0.1:8080", "http://[::1]:8080", "https://xn--bcher-kva.example"]
        {
            assert_eq!(Origin::from_str(good).map(|origin| origin.to_string()), Ok(good.to_owned()));
        }
        let wrong = " * null shop.example https:// https://shop.example/ https://shop.example/path https://Shop.example \
                     https://shop.example:443 https://user@shop.example https://shop.example?x ftp://shop.example https://*.example \
                     https://shop.example;x https://shop'.example";
        for wrong in wrong.split(' ').chain(["https://shop.example; script-src *", "https://shop.example\n"]) {
            assert!(Origin::from_str(wrong).is_err(), "{wrong:?}");
        }
    }
}
