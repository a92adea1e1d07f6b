//! Content that many clients get: all answers share one buffer, and one compressed copy.

use std::io::Write;

use actix_web::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

#[derive(Clone)]
pub struct Content {
    pub plain: Bytes,
    gzip: Option<Bytes>,
}

impl Content {
    pub fn plain(body: impl Into<Bytes>) -> Self {
        Self { plain: body.into(), gzip: None }
    }

    /// A body that is compressed now. This takes milliseconds.
    pub fn compressed(body: impl Into<Bytes>) -> Self {
        let plain = body.into();
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        // Writing to memory does not fail.
        let gzip = gzip.write_all(&plain).and_then(|()| gzip.finish()).ok().map(Bytes::from);
        Self { plain, gzip }
    }

    pub fn built(plain: &'static [u8], gzip: &'static [u8]) -> Self {
        Self { plain: Bytes::from_static(plain), gzip: Some(Bytes::from_static(gzip)) }
    }

    pub fn is_compressed(&self) -> bool {
        self.gzip.is_some()
    }

    pub fn answer(&self, request: &HttpRequest, mut response: HttpResponseBuilder) -> HttpResponse {
        let Some(gzip) = &self.gzip else { return response.body(self.plain.clone()) };
        response.insert_header((VARY, "accept-encoding"));
        match takes_gzip(request) {
            true => response.insert_header((CONTENT_ENCODING, "gzip")).body(gzip.clone()),
            false => response.body(self.plain.clone()),
        }
    }
}

fn takes_gzip(request: &HttpRequest) -> bool {
    let codings = request.headers().get(ACCEPT_ENCODING).and_then(|codings| codings.to_str().ok()).unwrap_or_default();
    codings.split(',').any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, "q=1"));
        let refused = weight.trim().strip_prefix("q=").and_then(|weight| weight.parse().ok()) == Some(0.0);
        name.trim().eq_ignore_ascii_case("gzip") && !refused
    })
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn gzip_is_for_those_who_take_it() {
        for (codings, takes) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("br;q=1.0, gzip ; q=0.001", true),
            ("gzip;q=0", false),
            ("gzip; q=0.000, br", false),
            ("identity", false),
            ("x-gzip", false),
            ("", false),
        ] {
            let request = TestRequest::default().insert_header((ACCEPT_ENCODING, codings)).to_http_request();
            let answer = Content::compressed("a page").answer(&request, HttpResponse::Ok());
            assert_eq!(answer.headers().contains_key(CONTENT_ENCODING), takes, "{codings}");
            assert_eq!(answer.headers().get(VARY).unwrap(), "accept-encoding");
        }
    }
}
