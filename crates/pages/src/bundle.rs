//! Publishes the pages as files, for a web server, an object store or a CDN.
//!
//! Files are written in an order in which every link already works: assets, pictures, the sales' pages, the pages that list them, the
//! manifest. Only then are the pages of removed sales deleted. A reader always finds whole files. If the writer dies, the next publish
//! completes them.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::file::{HTML, JPEG};
use super::folder::{Folder, FolderError};
use super::render::{Settings, Site};
use super::{FRONT_SALES_MAX, PageError};
use seckill_buying::sale::{SaleError, Stores};
use seckill_domain::ids::SaleId;
use seckill_domain::picture::PictureFile;
use seckill_http::file_headers::{self, Kind};

const BATCH: i64 = 500;
/// How long a watching publisher relies on the catalogue's version: the front page also drops old sales, without a new version.
const REPEAT_EVERY: Duration = Duration::from_secs(300);
const MANIFEST: &str = "manifest.json";

/// Why a publish failed. The files written so far are whole; the next publish completes them.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Page(#[from] PageError),
    #[error(transparent)]
    Sale(#[from] SaleError),
    #[error("the picture {0} has been replaced meanwhile: publish again")]
    PictureReplaced(String),
    #[error("the manifest cannot be written: {0}")]
    Manifest(#[from] serde_json::Error),
}

#[derive(Debug, Serialize)]
pub struct PublishReport {
    /// The catalogue's version that the pages show at least; some sales may be newer.
    pub(crate) catalog_version: i64,
    pub(crate) sales: usize,
    pub(crate) files_written: usize,
    pub(crate) files_unchanged: usize,
    pub(crate) pages_removed: usize,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    files: Vec<Entry>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Entry {
    path: String,
    blake3: String,
    bytes: u64,
    content_type: String,
    cache_control: String,
    headers: BTreeMap<String, String>,
}

pub struct Publisher {
    folder: Folder,
    site: Site,
    stores: Stores,
    retire_after_ms: i64,
    /// The entries of the last manifest. Pictures that it names are not read again.
    known: HashMap<String, Entry>,
    /// The last published version, and when.
    last: Option<(i64, Instant)>,
}

#[derive(Default)]
struct Progress {
    files: BTreeMap<String, Entry>,
    written: usize,
}

impl Publisher {
    pub fn open(out: &Path, settings: Settings, stores: Stores, retire_after_ms: u64) -> Result<Self, PublishError> {
        let folder = Folder::open(out)?;
        // A manifest that cannot be read is replaced, like any other wrong file.
        let manifest = folder.read(MANIFEST)?.and_then(|text| serde_json::from_slice::<Manifest>(&text).ok());
        let entries = manifest.into_iter().flat_map(|manifest| manifest.files);
        Ok(Self {
            folder,
            site: Site::new(settings)?,
            stores,
            retire_after_ms: retire_after_ms.cast_signed(),
            known: entries.map(|entry| (entry.path.clone(), entry)).collect(),
            last: None,
        })
    }

    pub async fn publish_changes(&mut self) -> Result<Option<PublishReport>, PublishError> {
        let ledger = &self.stores.ledger;
        let version = ledger.in_time(ledger.sales.catalog_version()).await.map_err(SaleError::from)?;
        match self.last {
            Some((last, at)) if last == version && at.elapsed() < REPEAT_EVERY => Ok(None),
            _ => self.publish().await.map(Some),
        }
    }

    pub async fn publish(&mut self) -> Result<PublishReport, PublishError> {
        let ledger = self.stores.ledger.clone();
        // Read before the sales: a change in the meantime is published again, and never missed.
        let catalog_version = ledger.in_time(ledger.sales.catalog_version()).await.map_err(SaleError::from)?;
        let retired_before = ledger.in_time(ledger.now_ms()).await.map_err(SaleError::from)? - self.retire_after_ms;
        let mut progress = Progress::default();
        for asset in self.site.assets.all().cloned().collect::<Vec<_>>() {
            self.put(&mut progress, Kind::Hashed, &asset.path, asset.content_type, &asset.content)?;
        }
        let (mut published, mut newest, mut after) = (HashSet::new(), VecDeque::new(), None);
        loop {
            let batch = ledger.in_time(ledger.sales.sales_after(after, BATCH)).await.map_err(SaleError::from)?;
            let Some(last) = batch.last() else { break };
            after = Some(last.id);
            for file in batch.iter().filter_map(|sale| sale.picture.as_ref()).flat_map(|picture| picture.files()) {
                self.put_picture(&mut progress, &file).await?;
            }
            self.folder.sync()?;
            for sale in batch {
                let page = self.site.sale(&sale)?;
                self.put_page(&mut progress, &format!("sales/{}/index.html", sale.id), &page)?;
                published.insert(sale.id);
                if sale.ends_at_ms > retired_before {
                    newest.push_front(sale);
                    newest.truncate(FRONT_SALES_MAX);
                }
            }
        }
        let front = self.site.front(newest.iter())?;
        let (orders, missing) = (self.site.orders()?, self.site.missing()?);
        for (path, page) in [("orders/index.html", orders), ("404.html", missing), ("index.html", front)] {
            self.folder.sync()?;
            self.put_page(&mut progress, path, &page)?;
        }
        self.put_manifest(&mut progress)?;
        let pages_removed = self.remove_all_but(&published)?;
        self.folder.sync()?;
        self.last = Some((catalog_version, Instant::now()));
        let files_unchanged = progress.files.len() + 1 - progress.written;
        self.known = progress.files.into_iter().collect();
        let (sales, files_written) = (published.len(), progress.written);
        Ok(PublishReport { catalog_version, sales, files_written, files_unchanged, pages_removed })
    }

    fn put_page(&mut self, progress: &mut Progress, path: &str, page: &str) -> Result<(), PublishError> {
        self.put(progress, Kind::Page, path, HTML, page.as_bytes())
    }

    fn put(
        &mut self,
        progress: &mut Progress,
        kind: Kind,
        path: &str,
        content_type: &str,
        content: &[u8],
    ) -> Result<(), PublishError> {
        let path = path.trim_start_matches('/');
        progress.written += usize::from(self.folder.put(path, content)?);
        let mut headers: BTreeMap<String, String> =
            file_headers::of(kind, &self.site.api).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let entry = Entry {
            path: path.to_owned(),
            blake3: blake3::hash(content).to_hex().to_string(),
            bytes: content.len() as u64,
            content_type: content_type.to_owned(),
            cache_control: headers.remove("Cache-Control").unwrap_or_default(),
            headers,
        };
        progress.files.insert(path.to_owned(), entry);
        Ok(())
    }

    /// Puts a picture unless it is there: its name identifies its content.
    async fn put_picture(&mut self, progress: &mut Progress, file: &PictureFile) -> Result<(), PublishError> {
        let address = file.path();
        let path = address.trim_start_matches('/');
        if progress.files.contains_key(path) {
            return Ok(());
        }
        let length = self.folder.length(path)?;
        if let Some(entry) = self.known.get(path).filter(|entry| Some(entry.bytes) == length) {
            progress.files.insert(path.to_owned(), entry.clone());
            return Ok(());
        }
        let ledger = &self.stores.ledger;
        let content = ledger.in_time(ledger.sales.picture(file)).await.map_err(SaleError::from)?;
        let content = content.ok_or_else(|| PublishError::PictureReplaced(path.to_owned()))?;
        self.put(progress, Kind::Hashed, path, JPEG, &content)
    }

    fn put_manifest(&mut self, progress: &mut Progress) -> Result<(), PublishError> {
        self.folder.sync()?;
        let manifest = Manifest { files: progress.files.values().cloned().collect() };
        let mut text = serde_json::to_string_pretty(&manifest)?;
        text.push('\n');
        progress.written += usize::from(self.folder.put(MANIFEST, text.as_bytes())?);
        Ok(self.folder.sync()?)
    }

    fn remove_all_but(&mut self, published: &HashSet<SaleId>) -> Result<usize, PublishError> {
        let mut removed = 0;
        for sale in self.folder.sales()? {
            if !published.contains(&sale) {
                removed += usize::from(self.folder.remove_sale(sale)?);
            }
        }
        Ok(removed)
    }
}
