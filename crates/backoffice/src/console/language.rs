//! The console's languages. A text stands in both of them at its place: `{{ show::t("Sales", "抢购") }}` in a template, and
//! `t("Sales", "抢购")` of `language.js` in a script. The frame's switch keeps the choice in a cookie.

use std::cell::Cell;
use std::fmt;

use actix_web::HttpRequest;
use actix_web::http::header::ACCEPT_LANGUAGE;

use crate::api::cookie;

const COOKIE: &str = "seckill_language";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Language {
    #[default]
    English,
    Chinese,
}

thread_local! {
    /// Of the page that this thread renders. A page is rendered without a pause, so no other page comes between.
    static RENDERED: Cell<Language> = const { Cell::new(Language::English) };
}

impl Language {
    /// The language that the person has chosen, else the one that the browser prefers.
    pub(crate) fn of(request: &HttpRequest) -> Self {
        let chosen = cookie(request, COOKIE);
        let preferred = || request.headers().get(ACCEPT_LANGUAGE)?.to_str().ok().map(preferred);
        match chosen.as_deref() {
            Some("zh") => Self::Chinese,
            Some("en") => Self::English,
            _ => preferred().unwrap_or_default(),
        }
    }

    pub(super) fn render<T>(self, render: impl FnOnce() -> T) -> T {
        let before = RENDERED.replace(self);
        let rendered = render();
        RENDERED.set(before);
        rendered
    }
}

/// The first of the two languages in the header wins. Browsers list languages by preference, so weights are not read.
fn preferred(header: &str) -> Language {
    let tags = header.split(',').map(|tag| tag.trim().to_ascii_lowercase());
    let known = tags.filter_map(|tag| match tag.get(..2) {
        Some("zh") => Some(Language::Chinese),
        Some("en") => Some(Language::English),
        _ => None,
    });
    known.into_iter().next().unwrap_or_default()
}

/// The text in the language of the page that is being rendered.
pub(super) fn t<'a>(en: &'a str, zh: &'a str) -> &'a str {
    match RENDERED.get() {
        Language::English => en,
        Language::Chinese => zh,
    }
}

/// A text that is made before its page is rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) en: &'static str,
    pub(crate) zh: &'static str,
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(t(self.en, self.zh))
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::COOKIE as COOKIES;
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn the_cookie_counts_before_the_browsers_preference() {
        for (cookies, accepted, language) in [
            ("", "", Language::English),
            ("", "zh-CN,zh;q=0.9,en;q=0.8", Language::Chinese),
            ("", "fr,en-US,zh", Language::English),
            ("", "fr", Language::English),
            ("seckill_language=zh", "en", Language::Chinese),
            ("a=b; seckill_language=en", "zh", Language::English),
            ("seckill_language=xx", "zh", Language::Chinese),
        ] {
            let request = TestRequest::default().append_header((COOKIES, cookies));
            let request = request.append_header((ACCEPT_LANGUAGE, accepted)).to_http_request();
            assert_eq!(Language::of(&request), language, "{cookies}; {accepted}");
        }
    }

    #[test]
    fn a_text_follows_the_page_that_is_rendered() {
        let text = Text { en: "Sales", zh: "抢购" };
        let in_both = || format!("{text} {}", t("open", "进行中"));
        assert_eq!(Language::Chinese.render(in_both), "抢购 进行中");
        assert_eq!(in_both(), "Sales open");
    }
}
