//! Caches documents about sales and products in Redis for all instances. Any copy may be missing.

use std::time::Duration;

use redis::cmd;

use super::{Gate, GateError};
use seckill_domain::ids::DocId;

/// A document at a version of the catalogue. Without text, the document does not exist.
#[derive(Debug, Clone)]
pub struct CachedDocument {
    pub as_of: i64,
    pub text: Option<String>,
}

const KEEP: Duration = Duration::from_secs(300);
/// The absence of a document is kept for a short time: a flood of unknown ids leaves nothing behind.
const KEEP_NULL: Duration = Duration::from_secs(5);

impl Gate {
    /// Reads a document; `None` is a miss.
    pub async fn cached(&self, id: DocId) -> Result<Option<CachedDocument>, GateError> {
        let key = self.keys.doc(id);
        let found: Option<String> = cmd("GET").arg(&key).query_async(&mut self.connections.of(&key)).await?;
        let Some((as_of, text)) = found.as_deref().and_then(|found| found.split_once('|')) else { return Ok(None) };
        let Ok(as_of) = as_of.parse() else { return Ok(None) };
        Ok(Some(CachedDocument { as_of, text: (!text.is_empty()).then(|| text.to_owned()) }))
    }

    pub async fn cache(&self, id: DocId, doc: &CachedDocument) -> Result<(), GateError> {
        let keep = if doc.text.is_some() { KEEP } else { KEEP_NULL };
        // Jitter: documents stored together must not expire together.
        let keep_ms = keep.mul_f64(rand::random_range(0.8..1.2)).as_millis();
        let (key, mut set) = (self.keys.doc(id), cmd("SET"));
        set.arg(&key).arg(format!("{}|{}", doc.as_of, doc.text.as_deref().unwrap_or_default()));
        set.arg("PX").arg(u64::try_from(keep_ms).unwrap_or(u64::MAX));
        Ok(set.query_async::<()>(&mut self.connections.of(&key)).await?)
    }
}
