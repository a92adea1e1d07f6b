//! People in the console: they sign in and out, and manage policies and applications.

use serde_json::json;

use crate::chromium::Page;
use crate::console::{PASSWORD, SIGN_IN, SIGN_OUT, at, console, form, shows, told};
use crate::input::{ENTER, TAB};

/// By keyboard, with messages for screen readers. After signing out, the browser's back button shows nothing.
#[tokio::test(flavor = "multi_thread")]
async fn people_sign_in_and_out() {
    let (shop, page) = console(&[]).await;
    page.open_console(&shop, "/admin/accounts").await;
    page.wait(&at("/admin/sign-in")).await;
    page.wait("document.activeElement.name === 'name'").await;
    page.press("root".chars().chain([TAB]).chain("a wrong password".chars()).chain([ENTER])).await;
    page.wait(&told(SIGN_IN, "name or password is wrong")).await;
    // A screen reader reads the focused element.
    page.wait("document.activeElement.tagName === 'OUTPUT'").await;
    assert!(page.is_true(&at("/admin/sign-in")).await);
    page.enter("root", PASSWORD).await;
    page.wait(&at("/admin/accounts")).await;
    page.wait("document.querySelector('header .account').innerText.includes('root')").await;
    page.send(SIGN_OUT).await;
    page.wait(&at("/admin/sign-in")).await;
    page.note_document().await;
    page.client.back().await.unwrap();
    page.next_document().await;
    page.wait(&at("/admin/sign-in")).await;

    // A session ends in the middle of a form: sending the form leads to the sign-in page, and from there back to the form.
    page.sign_in_at(&shop, "root", "/admin/accounts").await;
    let new = form("accounts");
    let fill = async || {
        page.type_over(&format!("{new} [name=name]"), "nina").await;
        page.choose(&format!("{new} [name=role]"), "manager").await;
        page.type_over(&format!("{new} [name=password]"), PASSWORD).await;
    };
    fill().await;
    shop.system.execute("DELETE FROM sessions").await;
    page.send(&new).await;
    page.wait(&at("/admin/sign-in")).await;
    page.enter("root", PASSWORD).await;
    page.wait(&at("/admin/accounts")).await;
    assert!(!page.is_true("document.getElementById('change-nina')").await, "the account was made without a session");
    fill().await;
    page.send(&new).await;
    page.wait("document.getElementById('change-nina')").await;
    shop.close(page).await;
}

/// The preview shows a change over the last hour, and a contradiction.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_made_previewed_and_changed() {
    let (shop, page) = console(&[]).await;
    shop.limits().await;
    page.sign_in_at(&shop, "max", "/admin/policies").await;
    page.wait(&shows("for everybody together is less than each gives to one user")).await;
    assert!(!page.is_true(&shows("scanner")).await, "an application that was not granted is shown");
    page.leave("main a[href^='/admin/policies/new']").await;
    let draft = "form[action='/admin/policies/draft']";
    page.type_over(&format!("{draft} [name=name]"), "burst").await;
    page.leave(&format!("{draft} button")).await;
    let terms = form("policies/burst");
    page.type_over(&format!("{terms} [name=limit]"), "7").await;
    page.type_over(&format!("{terms} [name=window_ms]"), "1000").await;
    page.leave(&format!("{terms} button:not([data-api])")).await;
    page.wait(&at("/admin/policies/mailer/burst")).await;

    page.open_console(&shop, "/admin/policies/mailer/everyone").await;
    let terms = format!("{}[data-method=PUT]", form("policies/everyone"));
    page.type_over(&format!("{terms} [name=limit]"), "2").await;
    page.click(&format!("{terms} button[data-api$='/preview']")).await;
    page.wait(&told(&terms, "Of 75 calls in the last hour, 15 were refused.*would have refused 45 if")).await;
    page.wait(&told(&terms, "2 in 60000 ms for everybody together is less than each gives")).await;
    assert!(page.is_true(&shows("limit 5, window_ms 60000")).await, "a look has changed the policy");
    page.leave(&format!("{terms} button:not([data-api])")).await;
    page.wait(&shows("limit 2, window_ms 60000")).await;
    shop.close(page).await;
}

/// After a reload the page no longer has it. A replaced token stays valid for the chosen time.
#[tokio::test(flavor = "multi_thread")]
async fn an_applications_token_is_shown_once() {
    let (shop, page) = console(&[]).await;
    page.sign_in_at(&shop, "root", "/admin/apps").await;
    let new = form("apps");
    page.type_over(&format!("{new} [name=name]"), "robots").await;
    page.click(&format!("{new} button")).await;
    let first = token(&page, &new).await;
    page.reload().await;
    page.wait("document.getElementById('app-robots')").await;
    let replace = form("apps/robots/tokens");
    page.click("#token-robots summary").await;
    page.press_and_answer(&format!("{replace} button"), "yes").await;
    let second = token(&page, &replace).await;
    assert_ne!(first, second);
    page.reload().await;
    page.wait("document.getElementById('app-robots')").await;
    let source = page.client.source().await.unwrap();
    for token in [first, second] {
        assert!(!source.contains(&token), "a token is shown again");
        let ask = reqwest::Client::new().post(shop.system.url("/api/v1/flow/acquire")).bearer_auth(&token);
        let answer = ask.json(&json!({ "app": "robots", "policy": "none" })).send().await.unwrap();
        assert_eq!(answer.status(), 200, "the token is not believed");
    }
    shop.close(page).await;
}

async fn token(page: &Page, form: &str) -> String {
    page.wait(&told(form, "[A-Za-z0-9_-]{20,}")).await;
    let output = format!("{form} output");
    let shown = page.evaluate(&format!("document.querySelector({output:?}).innerText.trim()")).await;
    shown.as_str().unwrap().to_owned()
}
