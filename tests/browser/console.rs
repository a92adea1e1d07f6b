//! Actions of people in the console, and their accounts.

use std::time::Duration;

use fantoccini::elements::Element;
use fantoccini::error::CmdError;
use seckill_backoffice::admin::password::hash_new;
use seckill_domain::account::{AccountName, AccountRole, NewPassword};
use seckill_harness::eventually;
use tokio::time::sleep;

use crate::chromium::Page;
use crate::page::shown;
use crate::shop::Shop;

pub const PASSWORD: &str = "a password of the tests";
pub const PEOPLE: [(&str, AccountRole); 3] =
    [("root", AccountRole::Admin), ("max", AccountRole::Manager), ("vic", AccountRole::Viewer)];

/// The form that signs in, and the form in every page's head that signs out.
pub const SIGN_IN: &str = "main form[data-api='/api/v1/admin/session']";
pub const SIGN_OUT: &str = "header form[data-api='/api/v1/admin/session']";

/// The document is not the one marked by `note_document`.
const NEXT_DOCUMENT: &str = "!window.documentBefore && document.readyState === 'complete'";
/// The service was too busy to show the page.
const BUSY: &str = "performance.getEntriesByType('navigation')[0]?.responseStatus === 503";
/// How long a test waits before it asks a busy service again.
const BUSY_FOR: Duration = Duration::from_secs(1);

pub fn form(path: &str) -> String {
    format!("form[data-api='/api/v1/admin/{path}']")
}

pub fn at(path: &str) -> String {
    format!("document.readyState === 'complete' && location.pathname === {path:?}")
}

pub fn account(name: &str) -> AccountName {
    AccountName::parse(name, "account").unwrap()
}

/// The page of a sale says that the sale is in this phase.
pub fn phase(name: &str) -> String {
    format!("document.querySelector('h1 .badge').textContent === {name:?}")
}

pub fn told(form: &str, pattern: &str) -> String {
    let said = format!("{form} output, {form} .error");
    format!("[...document.querySelectorAll({said:?})].some((one) => /{pattern}/i.test(one.innerText))")
}

pub fn shows(text: &str) -> String {
    format!("document.querySelector('main').innerText.includes({text:?})")
}

pub async fn console(settings: &[(&str, &str)]) -> (Shop, Page) {
    let (shop, page) = Shop::with_page(settings).await;
    shop.people().await;
    (shop, page)
}

impl Shop {
    pub async fn people(&self) {
        let hash = hash_new(NewPassword::parse(PASSWORD.into(), &account("ann")).unwrap()).unwrap();
        for (name, role) in PEOPLE {
            assert!(
                self.system.stores.ledger.accounts.create_account(&account(name), role, &hash, "test").await.unwrap()
            );
        }
    }
}

impl Page {
    /// Opens a page of the console, which sends a signed-out person to the sign-in page first.
    pub async fn open_console(&self, shop: &Shop, path: &str) {
        self.client.goto(&shop.system.url(path)).await.unwrap();
        self.loaded().await;
    }

    /// Waits until the document has loaded. A document refused by a busy service is loaded again.
    async fn loaded(&self) {
        eventually(|| async {
            self.wait("document.readyState === 'complete'").await;
            if self.try_evaluate(BUSY).await? == false {
                return Ok(());
            }
            sleep(BUSY_FOR).await;
            self.client.refresh().await.map_err(|error| error.to_string())?;
            Err("the service is too busy to show the page".to_owned())
        })
        .await;
    }

    pub async fn enter(&self, name: &str, password: &str) {
        self.type_over(&format!("{SIGN_IN} [name=name]"), name).await;
        self.type_over(&format!("{SIGN_IN} [name=password]"), password).await;
        self.note_document().await;
        let busy = told(SIGN_IN, "try again shortly");
        // A busy service may refuse for a moment to check a password: the typed text stays, and is sent again.
        eventually(|| async {
            self.click(&format!("{SIGN_IN} button")).await;
            self.wait(&format!("{NEXT_DOCUMENT} || {busy}")).await;
            if !self.is_true(&busy).await {
                return Ok(());
            }
            sleep(BUSY_FOR).await;
            Err("the service is too busy to check a password".to_owned())
        })
        .await;
        self.next_document().await;
    }

    pub async fn sign_in_at(&self, shop: &Shop, name: &str, path: &str) {
        self.open_console(shop, path).await;
        self.enter(name, PASSWORD).await;
        self.wait(&at(path)).await;
    }

    /// Presses a form's button, and waits for the next page.
    pub async fn send(&self, form: &str) {
        self.leave(&format!("{form} button:not([type=button])")).await;
    }

    /// Presses a button with a confirmation question.
    pub async fn press_and_look(&self, button: &str) {
        self.click(button).await;
        self.wait(&shown("dialog[open]")).await;
    }

    /// Presses a button with a confirmation question, and answers.
    pub async fn press_and_answer(&self, button: &str, answer: &str) {
        self.press_and_look(button).await;
        self.click(&format!("dialog button[value={answer}]")).await;
        self.wait("!document.querySelector('dialog')").await;
    }

    /// Presses a button with a confirmation question, says yes, and waits for the next page.
    pub async fn leave_after_question(&self, button: &str) {
        self.note_document().await;
        self.press_and_answer(button, "yes").await;
        self.next_document().await;
    }

    /// Clicks a link or a reload, and waits for the next page.
    pub async fn leave(&self, selector: &str) {
        self.note_document().await;
        self.click(selector).await;
        self.next_document().await;
    }

    /// Marks the document, so that `next_document` can recognize a new one.
    pub async fn note_document(&self) {
        self.evaluate("window.documentBefore = true").await;
    }

    /// Waits until the document is not the one marked by `note_document`.
    pub async fn next_document(&self) {
        self.wait(NEXT_DOCUMENT).await;
        self.loaded().await;
    }

    pub async fn type_over(&self, selector: &str, text: &str) {
        self.with_element(selector, async |element: &Element| {
            element.clear().await?;
            element.send_keys(text).await
        })
        .await;
    }

    pub async fn choose(&self, selector: &str, value: &str) {
        self.with_element(selector, async |element: &Element| element.select_by_value(value).await).await;
    }

    /// Acts on an element when that is possible: before, the element is redrawn, hidden or covered.
    async fn with_element(&self, selector: &str, act: impl AsyncFn(&Element) -> Result<(), CmdError>) {
        eventually(|| async {
            let element = self.element(selector).await?;
            act(&element).await.map_err(|error| format!("{selector}: {error}"))
        })
        .await;
    }
}
