//! Sales that callers have asked for, and that the server does not serve.

use std::collections::HashSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::ids::SaleId;

/// The sales since they were last taken.
#[derive(Default)]
pub(super) struct RefillWanted {
    sales: Mutex<HashSet<SaleId>>,
    added: Notify,
}

impl RefillWanted {
    pub fn add(&self, sale: SaleId) {
        self.sales.lock().insert(sale);
        self.added.notify_one();
    }

    /// Waits until there is one, and takes all.
    pub async fn take(&self) -> HashSet<SaleId> {
        loop {
            let sales = std::mem::take(&mut *self.sales.lock());
            if !sales.is_empty() {
                return sales;
            }
            self.added.notified().await;
        }
    }
}
