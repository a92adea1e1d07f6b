//! The cookies of people who sign in: one names the session, the other the browser.

use actix_web::HttpRequest;
use actix_web::cookie::time::Duration;
use actix_web::cookie::{Cookie, SameSite};
use actix_web::http::header::COOKIE;

use crate::admin::session::KNOWN_DAYS;

/// A browser accepts a name that begins with `__Host-` only over TLS, for all paths and for this host: another site under the same domain
/// cannot set or replace the cookie. In development mode the service speaks plain HTTP, and names have no prefix.
pub struct CookieNames {
    pub session: &'static str,
    pub(crate) device: &'static str,
    secure: bool,
}

impl CookieNames {
    pub const fn new(dev: bool) -> Self {
        if dev {
            Self { session: "seckill_session", device: "seckill_device", secure: false }
        } else {
            Self { session: "__Host-seckill_session", device: "__Host-seckill_device", secure: true }
        }
    }

    pub(crate) fn session<'a>(&self, token: &'a str) -> Cookie<'a> {
        self.cookie(self.session, token)
    }

    pub(crate) fn no_session(&self) -> Cookie<'static> {
        let mut cookie = self.cookie(self.session, "");
        cookie.set_max_age(Duration::ZERO);
        cookie
    }

    pub(crate) fn device<'a>(&self, token: &'a str) -> Cookie<'a> {
        let mut cookie = self.cookie(self.device, token);
        cookie.set_max_age(Duration::days(KNOWN_DAYS.into()));
        cookie
    }

    /// A cookie that goes to this host only, is hidden from scripts, is not sent with requests from other sites, and needs
    /// TLS outside development mode.
    fn cookie<'a>(&self, name: &'static str, value: &'a str) -> Cookie<'a> {
        let cookie = Cookie::build(name, value).path("/").http_only(true).same_site(SameSite::Strict);
        cookie.secure(self.secure).finish()
    }
}

/// The value of a cookie. Each cookie is parsed alone: `HttpRequest::cookie` finds none if another application on this host has set a
/// malformed one.
pub(crate) fn cookie(request: &HttpRequest, name: &str) -> Option<String> {
    let pairs = request.headers().get_all(COOKIE).flat_map(|line| line.as_bytes().split(|b| *b == b';'));
    let mut cookies = pairs.filter_map(|pair| Cookie::parse(std::str::from_utf8(pair).ok()?).ok());
    cookies.find(|cookie| cookie.name() == name).map(|cookie| cookie.value().to_owned())
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn other_cookies_of_this_host_hide_none_of_ours() {
        for lines in [
            &[&b"seckill_session=s"[..]][..],
            &[b"a=\xff; seckill_session=s"],
            &[b"\xe5=\x80;=;;%ff", b"x;seckill_session=s;y"],
        ] {
            let request = lines.iter().fold(TestRequest::default(), |request, line| {
                request.append_header((COOKIE, HeaderValue::from_bytes(line).unwrap()))
            });
            assert_eq!(cookie(&request.to_http_request(), "seckill_session").as_deref(), Some("s"), "{lines:?}");
        }
    }
}
