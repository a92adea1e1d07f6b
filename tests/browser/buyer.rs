//! A buyer's actions on the page of a sale.

use serde_json::Value;

use crate::chromium::Page;
use crate::page::{shown, text};

pub const LIVE: &str = "document.getElementById('buy').getAttribute('aria-disabled') === 'false'";
/// The button is disabled: a click buys nothing.
pub const GREY: &str = "document.getElementById('buy').getAttribute('aria-disabled') === 'true'";
/// The page asks for no challenge, or holds a pass.
pub const SOLVED: &str = "document.getElementById('challenge').dataset.solved === '1'";
/// The order can be paid: the page of the sale knows the channels of payment.
pub const PAYABLE: &str = "document.querySelector('#pay')?.getAttribute('aria-disabled') === 'false'";
pub const COUNTDOWN_S: &str = "['days', 'hours', 'minutes', 'seconds']
    .reduce((sum, unit, place) => sum * [0, 24, 60, 60][place] + Number(document.getElementById(unit).textContent), 0)";

/// The page's present message to the buyer.
pub fn says(pattern: &str) -> String {
    let said = "['label', 'why', 'message'].map((id) => document.getElementById(id)?.innerText).join(' ')";
    format!("/{pattern}/i.test({said})")
}

pub fn order(status: &str) -> String {
    shown(&format!("#orders li.{status}"))
}

impl Page {
    pub async fn sign_in(&self, user: &str) {
        self.wait(&shown("#sign-in")).await;
        self.fill("#sign-in [name=user]", user).await;
        self.click("#sign-in [type=submit]").await;
        self.signed_in_as(user).await;
    }

    pub async fn signed_in_as(&self, user: &str) {
        self.wait(&format!("{}.includes({user:?})", text("#user"))).await;
    }

    /// Clicks when the button becomes active, and waits until the order can be paid.
    pub async fn buy(&self) {
        self.wait(LIVE).await;
        self.click("#buy").await;
        self.wait(&order("pending_payment")).await;
    }

    /// Pays the only order, and waits until the page shows the payment.
    pub async fn pay(&self) {
        self.wait(PAYABLE).await;
        self.click("#pay").await;
        self.wait(&order("paid")).await;
    }

    /// The page's latest challenge, when it differs from `before`.
    pub async fn challenge(&self, before: &Value) -> Value {
        self.wait(&shown("#challenge")).await;
        self.wait(&format!("window.seckillChallenge && window.seckillChallenge.challenge_id !== {before}")).await;
        self.evaluate("window.seckillChallenge").await
    }
}
