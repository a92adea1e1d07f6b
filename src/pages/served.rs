//! The pages that a serving instance keeps in memory: rendered pages, and the answers made from them. All threads share them.

use std::sync::Arc;

use actix_web::http::header::{ETAG, HeaderName, HeaderValue, IF_NONE_MATCH};
use actix_web::{HttpRequest, HttpResponse};
use arc_swap::ArcSwapOption;
use moka::future::Cache;

use super::assets::{Asset, AssetError};
use super::docs;
use super::file::{File, HTML};
use super::headers::{self, Kind};
use super::pictures::Pictures;
use super::render::{Settings, Site};
use crate::domain::ids::SaleId;
use crate::domain::sale::Sale;
use crate::http::Content;

/// Bytes of rendered sale pages in memory: thousands of pages.
const RENDERED_MAX: u64 = 32 * 1024 * 1024;

/// Why pages cannot be made: this program's files are not consistent, which tests exclude.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    #[error(transparent)]
    Asset(#[from] AssetError),
    #[error("a page cannot be rendered: {0}")]
    Render(#[from] askama::Error),
}

/// The page of a sale, with the sale that it was rendered from. A changed sale is rendered again.
#[derive(Clone)]
struct Rendered {
    sale: Arc<Sale>,
    page: File,
}

type Headers = Vec<(HeaderName, HeaderValue)>;

/// The pages as the service serves them. All threads share them.
pub struct Pages {
    site: Site,
    pub(super) orders: File,
    missing: File,
    pub(super) docs: File,
    pub(super) docs_files: [(&'static str, File); 2],
    assets: Vec<(String, File)>,
    /// The front page, and the sales that it shows.
    front: ArcSwapOption<(Vec<Arc<Sale>>, File)>,
    sales: Cache<SaleId, Rendered>,
    pub(super) pictures: Pictures,
    page_headers: Headers,
    docs_headers: Headers,
    hashed_headers: Headers,
}

impl Pages {
    /// Renders the pages that depend on no sale.
    ///
    /// # Errors
    /// This program's files are not consistent, which tests exclude.
    pub fn new(settings: Settings) -> Result<Self, PageError> {
        let site = Site::new(settings)?;
        let headers = |kind| -> Headers {
            let all = headers::of(kind, &site.api).into_iter();
            all.filter_map(|(name, value)| Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?)))
                .collect()
        };
        let weight =
            |_: &SaleId, rendered: &Rendered| u32::try_from(rendered.page.body.plain.len()).unwrap_or(u32::MAX);
        let compressed = |asset: &Asset| File::of(asset.content_type, Content::compressed(asset.content.clone()));
        let assets = site.assets.all().map(|asset| (asset.path.clone(), compressed(asset)));
        Ok(Self {
            orders: File::new(HTML, site.orders()?),
            missing: File::new(HTML, site.missing()?),
            docs: File::new(HTML, site.docs()?),
            docs_files: docs::files(),
            assets: assets.collect(),
            front: ArcSwapOption::empty(),
            sales: Cache::builder().max_capacity(RENDERED_MAX).weigher(weight).build(),
            pictures: Pictures::default(),
            page_headers: headers(Kind::Page),
            docs_headers: headers(Kind::Docs),
            hashed_headers: headers(Kind::Hashed),
            site,
        })
    }

    /// The front page of these sales.
    pub(super) fn front(&self, sales: Vec<Arc<Sale>>) -> Result<File, PageError> {
        if let Some(front) = &*self.front.load()
            && front.0 == sales
        {
            return Ok(front.1.clone());
        }
        let page = File::new(HTML, self.site.front(sales.iter().map(|sale| &**sale))?);
        self.front.store(Some(Arc::new((sales, page.clone()))));
        Ok(page)
    }

    /// The page of a sale.
    pub(super) async fn sale(&self, sale: Arc<Sale>) -> Result<File, PageError> {
        let known = self.sales.get(&sale.id).await;
        if let Some(rendered) = known.filter(|rendered| rendered.sale == sale) {
            return Ok(rendered.page);
        }
        let page = File::new(HTML, self.site.sale(&sale)?);
        self.sales.insert(sale.id, Rendered { sale, page: page.clone() }).await;
        Ok(page)
    }

    /// The file at an address of an asset.
    pub(super) fn asset(&self, path: &str) -> Option<&File> {
        self.assets.iter().find(|(known, _)| known == path).map(|(_, file)| file)
    }

    fn headers(&self, kind: Kind) -> &Headers {
        match kind {
            Kind::Page => &self.page_headers,
            Kind::Docs => &self.docs_headers,
            Kind::Hashed => &self.hashed_headers,
        }
    }

    /// The file, or 304 if the client has it.
    pub(super) fn answer(&self, request: &HttpRequest, kind: Kind, file: &File) -> HttpResponse {
        let known = request.headers().get(IF_NONE_MATCH).and_then(|tags| tags.to_str().ok()).unwrap_or_default();
        let is_known = file.is_one_of(known);
        let mut response = if is_known { HttpResponse::NotModified() } else { HttpResponse::Ok() };
        for header in self.headers(kind) {
            response.insert_header(header.clone());
        }
        response.insert_header((ETAG, file.tag.as_str()));
        if is_known {
            return response.finish();
        }
        response.content_type(file.content_type);
        file.body.answer(request, response)
    }

    /// The page "not found".
    pub(super) fn no_page(&self) -> HttpResponse {
        let mut response = HttpResponse::NotFound();
        for header in self.headers(Kind::Page) {
            response.insert_header(header.clone());
        }
        response.content_type(self.missing.content_type).body(self.missing.body.plain.clone())
    }

    pub(super) fn answer_made(&self, request: &HttpRequest, page: Result<File, PageError>) -> HttpResponse {
        match page {
            Ok(page) => self.answer(request, Kind::Page, &page),
            Err(error) => {
                tracing::error!(%error, "page not made");
                HttpResponse::InternalServerError().finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::render::tests::sale;
    use super::*;

    fn pages() -> Pages {
        Pages::new(Settings { origin: None, currency: "CNY".into(), api: None }).unwrap()
    }

    #[tokio::test]
    async fn a_page_is_rendered_again_only_when_its_sale_has_changed() {
        let pages = pages();
        let (one, same) = (Arc::new(sale("Phone")), Arc::new(sale("Phone")));
        let first = pages.sale(Arc::clone(&one)).await.unwrap();
        // The same buffer, not only equal bytes.
        assert_eq!(pages.sale(same).await.unwrap().body.plain.as_ptr(), first.body.plain.as_ptr());
        let cheaper = Arc::new(Sale { price_cents: 1, ..sale("Phone") });
        let second = pages.sale(cheaper).await.unwrap();
        assert_ne!(second.tag, first.tag);
        assert_eq!(pages.sale(one).await.unwrap().tag, first.tag);
    }

    #[test]
    fn every_header_can_be_sent() {
        let pages = pages();
        for kind in [Kind::Page, Kind::Docs, Kind::Hashed] {
            assert_eq!(pages.headers(kind).len(), headers::of(kind, "").len());
        }
    }
}
