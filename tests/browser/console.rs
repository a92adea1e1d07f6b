//! What people do in the console, and who they are.

use std::time::Duration;

use fantoccini::elements::Element;
use fantoccini::error::CmdError;
use seckill::admin::password::hash_new;
use seckill::domain::account::{AccountName, AccountRole, NewPassword};
use seckill_harness::eventually;
use tokio::time::sleep;

use crate::chromium::Page;
use crate::page::shown;
use crate::shop::Shop;

pub const PASSWORD: &str = "a password of the tests";
/// An account of each role.
pub const PEOPLE: [(&str, AccountRole); 3] =
    [("root", AccountRole::Admin), ("max", AccountRole::Manager), ("vic", AccountRole::Viewer)];

/// The form that signs in, and the one in the head of every page that signs out.
pub const SIGN_IN: &str = "main form[data-api='/api/v1/admin/session']";
pub const SIGN_OUT: &str = "header form[data-api='/api/v1/admin/session']";

/// The document is another one than when `note_document` was called.
const NEXT_DOCUMENT: &str = "!window.documentBefore && document.readyState === 'complete'";
/// The service was too busy to show the page.
const BUSY: &str = "performance.getEntriesByType('navigation')[0]?.responseStatus === 503";
/// How long a test waits before it asks a busy service again.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// The form that sends to this address of the admin API.
pub fn form(path: &str) -> String {
    format!("form[data-api='/api/v1/admin/{path}']")
}

/// The page is at this path, and has loaded.
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

/// What a form says about its last call.
pub fn told(form: &str, pattern: &str) -> String {
    format!("/{pattern}/i.test(document.querySelector({:?})?.innerText ?? '')", format!("{form} output"))
}

/// The page shows this text to a person.
pub fn shows(text: &str) -> String {
    format!("document.querySelector('main').innerText.includes({text:?})")
}

impl Shop {
    /// Creates the account of each role, with `PASSWORD`.
    pub async fn people(&self) {
        let hash = hash_new(NewPassword::parse(PASSWORD.into(), &account("ann")).unwrap()).unwrap();
        for (name, role) in PEOPLE {
            assert!(self.system.stores.ledger.create_account(&account(name), role, &hash, "test").await.unwrap());
        }
    }
}

impl Page {
    /// Opens a page of the console, which leads a person who is signed out to sign in first.
    pub async fn open_console(&self, shop: &Shop, path: &str) {
        self.client.goto(&shop.system.url(path)).await.unwrap();
        self.loaded().await;
    }

    /// Waits until the document has loaded. One that a busy service has refused is loaded again.
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

    /// Signs in on the page that asks for it, and waits for the page that follows.
    pub async fn enter(&self, name: &str, password: &str) {
        self.type_over(&format!("{SIGN_IN} [name=name]"), name).await;
        self.type_over(&format!("{SIGN_IN} [name=password]"), password).await;
        self.note_document().await;
        let busy = told(SIGN_IN, "try again shortly");
        // A busy service refuses to check a password for a moment: what was typed stays, and is sent again.
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

    /// Signs a person in, and shows a page of the console.
    pub async fn sign_in_at(&self, shop: &Shop, name: &str, path: &str) {
        self.open_console(shop, path).await;
        self.enter(name, PASSWORD).await;
        self.wait(&at(path)).await;
    }

    /// Presses a form's button, and waits for the page that follows.
    pub async fn send(&self, form: &str) {
        self.leave(&format!("{form} button:not([type=button])")).await;
    }

    /// Presses a button that asks before it acts, and answers.
    pub async fn press_and_answer(&self, button: &str, answer: &str) {
        self.click(button).await;
        self.wait(&shown("dialog[open]")).await;
        self.click(&format!("dialog button[value={answer}]")).await;
        self.wait("!document.querySelector('dialog')").await;
    }

    /// Presses a button that asks before it acts, says yes, and waits for the page that follows.
    pub async fn leave_after_question(&self, button: &str) {
        self.note_document().await;
        self.press_and_answer(button, "yes").await;
        self.next_document().await;
    }

    /// Clicks what leads to another page or loads this one again, and waits for the page that follows.
    pub async fn leave(&self, selector: &str) {
        self.note_document().await;
        self.click(selector).await;
        self.next_document().await;
    }

    /// Marks the document, so that `next_document` knows another one from it.
    pub async fn note_document(&self) {
        self.evaluate("window.documentBefore = true").await;
    }

    /// Waits until the document is another one than when `note_document` was called.
    pub async fn next_document(&self) {
        self.wait(NEXT_DOCUMENT).await;
        self.loaded().await;
    }

    /// Types a text into a field, in place of what is in it.
    pub async fn type_over(&self, selector: &str, text: &str) {
        self.with_element(selector, async |element: &Element| {
            element.clear().await?;
            element.send_keys(text).await
        })
        .await;
    }

    /// Chooses from a list by the value of its option.
    pub async fn choose(&self, selector: &str, value: &str) {
        self.with_element(selector, async |element: &Element| element.select_by_value(value).await).await;
    }

    /// Does something with an element once it can be done: until then the element is redrawn, hidden or covered.
    async fn with_element(&self, selector: &str, act: impl AsyncFn(&Element) -> Result<(), CmdError>) {
        eventually(|| async {
            let element = self.element(selector).await?;
            act(&element).await.map_err(|error| format!("{selector}: {error}"))
        })
        .await;
    }
}
