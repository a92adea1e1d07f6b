//! A system, its bank, and sales created by the command, as a shop does.

use actix_web::dev::ServerHandle;
use seckill_domain::ids::SaleId;
use seckill_harness::folder::{Folder, free_address};
use seckill_harness::{Sale, System, until};
use seckill_sandbox::Sandbox;
use serde_json::Value;
use tokio::process::Command;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;

use crate::buyer::LIVE;
use crate::chromium::Page;

/// The number of concurrent browser tests: a browser uses a whole core while a page loads.
static BROWSERS: Semaphore = Semaphore::const_new(2);

pub struct Shop {
    pub system: System,
    bank: ServerHandle,
    bank_runs: JoinHandle<anyhow::Result<()>>,
    pub folder: Folder,
    _turn: SemaphorePermit<'static>,
}

impl Shop {
    /// A shop, and a browser.
    pub async fn with_page(settings: &[(&str, &str)]) -> (Self, Page) {
        (Self::open(settings).await, Page::open().await)
    }

    /// With a buyer who can buy in a live sale. Two units are allowed, so that a second purchase would be visible.
    pub async fn with_buyer() -> (Self, Page, Sale) {
        let (shop, page) = Self::with_page(&[]).await;
        let sale = shop.sale(&["--stock", "5", "--per-user", "2"]).await;
        page.visit(&shop.page_of(&sale)).await;
        page.sign_in("ann").await;
        page.wait(LIVE).await;
        (shop, page, sale)
    }

    /// Waits for its turn, and starts the service and the bank.
    pub async fn open(settings: &[(&str, &str)]) -> Self {
        let turn = BROWSERS.acquire().await.unwrap();
        let folder = Folder::new("shop");
        let bank = free_address().to_string();
        let (url, file) = (format!("http://{bank}"), folder.file("bank.jsonl"));
        let own = [
            ("SECKILL_CHANNELS__SANDBOX__URL", url.as_str()),
            ("SECKILL_PAYMENTS__ASK_AFTER_MS", "500"),
            ("SECKILL_SANDBOX__BIND", &bank),
            ("SECKILL_SANDBOX__DATA_FILE", &file),
            ("SECKILL_SANDBOX__CONFIRM_MS", "20"),
        ];
        let system = System::start_with(&[&own, settings].concat()).await;
        let mut bank = system.config.sandbox.clone();
        bank.callback_url = system.url("/api/v1/payments/callbacks/sandbox");
        let bank = Sandbox::bind(&bank).unwrap();
        Self { system, bank: bank.stopper(), bank_runs: tokio::spawn(bank.run()), folder, _turn: turn }
    }

    pub async fn close_after_one(self, page: Page, sale: &Sale) {
        self.system.settled(sale).await;
        assert_eq!(self.system.orders(sale).await, 1);
        self.close(page).await;
    }

    /// Ends in good order.
    pub async fn close(self, page: Page) {
        page.close().await;
        self.system.finish().await;
        self.bank.stop(true).await;
        self.bank_runs.await.unwrap().unwrap();
    }

    /// Runs a command of the program, and returns what it prints.
    pub async fn command(&self, arguments: &[&str]) -> Vec<u8> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
        command.args(arguments).env_clear().envs(&self.system.environment).env("RUST_LOG", "error");
        let output = command.output().await.unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// A sale of phones at one yuan.
    pub async fn sale(&self, options: &[&str]) -> Sale {
        self.sale_of("Phone", "100", options).await
    }

    pub async fn sale_of(&self, product: &str, price_cents: &str, options: &[&str]) -> Sale {
        let terms = ["sale", "create", "--product", product, "--price-cents", price_cents];
        let created: Value = serde_json::from_slice(&self.command(&[&terms, options].concat()).await).unwrap();
        self.system.is_followed().await;
        self.sale_with(SaleId::from_db(created["sale_id"].as_i64().unwrap())).await
    }

    pub async fn sale_with(&self, id: SaleId) -> Sale {
        let keys = "SELECT purchase_key, waiting_key FROM sales WHERE id = $1";
        let keys: (String, String) = sqlx::query_as(keys).bind(id.get()).fetch_one(&self.system.sql).await.unwrap();
        Sale { id, key: keys.0, waiting_key: keys.1 }
    }

    pub fn page_of(&self, sale: &Sale) -> String {
        self.system.url(&format!("/sales/{}", sale.id))
    }

    /// Waits until a purchase is certain, whether its buyer knows or not.
    pub async fn one_purchase(&self, sale: &Sale) {
        until(1, || self.purchases(sale)).await;
    }

    pub async fn purchases(&self, sale: &Sale) -> i64 {
        self.system.count("SELECT count(*) FROM purchase_records WHERE sale_id = $1", sale).await
    }
}
