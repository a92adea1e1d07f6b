//! The pages that a serving instance keeps in memory: rendered pages, and the answers made from them. All threads share them.

use std::sync::Arc;

use actix_web::http::header::{ETAG, HeaderName, HeaderValue, IF_NONE_MATCH};
use actix_web::{HttpRequest, HttpResponse};
use arc_swap::ArcSwapOption;
use moka::future::Cache;

use super::docs;
use super::file::{File, HTML};
use super::pictures::Pictures;
use super::render::{PageError, Settings, Site};
use seckill_domain::ids::SaleId;
use seckill_domain::sale::Sale;
use seckill_http::Content;
use seckill_http::file_headers::{self, Kind};
use seckill_http::static_files::Asset;

/// Sale pages in memory, of some 10 kB.
const RENDERED_MAX: u64 = 3_000;

type Headers = Vec<(HeaderName, HeaderValue)>;

pub struct Pages {
    site: Site,
    pub(super) orders: File,
    missing: File,
    pub(super) docs: File,
    pub(super) docs_files: [(&'static str, File); 2],
    assets: Vec<(String, File)>,
    front: ArcSwapOption<(Vec<Arc<Sale>>, File)>,
    /// The page of each sale, with the sale that it was rendered from.
    sales: Cache<SaleId, (Arc<Sale>, File)>,
    pub(super) pictures: Pictures,
    /// Of each `Kind`.
    headers: [Headers; 3],
}

impl Pages {
    pub fn new(settings: Settings) -> Result<Self, PageError> {
        let site = Site::new(settings)?;
        let headers = |kind| -> Headers {
            let all = file_headers::of(kind, &site.api).into_iter();
            all.filter_map(|(name, value)| Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?)))
                .collect()
        };
        let compressed = |asset: &Asset| File::of(asset.content_type, Content::compressed(asset.content.clone()));
        let assets = site.assets.all().map(|asset| (asset.path.clone(), compressed(asset)));
        Ok(Self {
            orders: File::new(HTML, site.orders()?),
            missing: File::new(HTML, site.missing()?),
            docs: File::new(HTML, site.docs()?),
            docs_files: docs::files(),
            assets: assets.collect(),
            front: ArcSwapOption::empty(),
            sales: Cache::new(RENDERED_MAX),
            pictures: Pictures::default(),
            headers: [Kind::Page, Kind::Docs, Kind::Hashed].map(headers),
            site,
        })
    }

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

    pub(super) async fn sale(&self, sale: Arc<Sale>) -> Result<File, PageError> {
        if let Some((_, page)) = self.sales.get(&sale.id).await.filter(|(rendered, _)| *rendered == sale) {
            return Ok(page);
        }
        let page = File::new(HTML, self.site.sale(&sale)?);
        self.sales.insert(sale.id, (sale, page.clone())).await;
        Ok(page)
    }

    pub(super) fn asset(&self, path: &str) -> Option<&File> {
        self.assets.iter().find(|(known, _)| known == path).map(|(_, file)| file)
    }

    /// The file, or 304 if the client has it.
    pub(super) fn answer(&self, request: &HttpRequest, kind: Kind, file: &File) -> HttpResponse {
        let known = request.headers().get(IF_NONE_MATCH).and_then(|tags| tags.to_str().ok()).unwrap_or_default();
        let is_known = file.is_one_of(known);
        let mut response = if is_known { HttpResponse::NotModified() } else { HttpResponse::Ok() };
        for header in &self.headers[kind as usize] {
            response.insert_header(header.clone());
        }
        response.insert_header((ETAG, file.tag.as_str()));
        if is_known {
            return response.finish();
        }
        response.content_type(file.content_type);
        file.body.answer(request, response)
    }

    pub(super) fn no_page(&self) -> HttpResponse {
        let mut response = HttpResponse::NotFound();
        for header in &self.headers[Kind::Page as usize] {
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
