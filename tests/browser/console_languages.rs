//! The console in English and in Chinese. Both stand in the templates and scripts; the person's choice is kept in a cookie.

use serde_json::{Value, json};

use crate::chromium::Page;
use crate::console::{console, form};
use crate::console_pages::{places, visit};
use crate::day::Day;
use crate::page::{READY, shown};

/// What people read on a page: texts, also of attributes, without names, ids, code and what is marked as another language.
const TEXTS: &str = "(() => {
    const own = 'code, pre, bdi, time, textarea, datalist, [lang]:not(html), .account';
    const texts = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
        const element = node.nodeType === 1 ? node : node.parentElement;
        if (element.closest(own) || element.closest('script, template')) continue;
        if (node.nodeType === 3) texts.push(node.textContent);
        else for (const name of ['aria-label', 'title', 'placeholder', 'data-confirm']) texts.push(node.getAttribute(name) ?? '');
    }
    // The title of a runbook is its heading.
    if (!document.querySelector('article[lang]')) texts.push(document.title);
    return texts.map((text) => text.replace(/\\s+/g, ' ').trim()).filter((text) => text !== '');
})()";
/// Three words in a row are a sentence, or a part of one.
const ENGLISH_WORDS: &str = r"/[A-Za-z’']+[,;:.]? [a-z’']+[,;:.]? [a-z’']+/";
const CHINESE_LETTERS: &str = r"/[\u4e00-\u9fff]/";

async fn texts_with(page: &Page, pattern: &str) -> Value {
    page.evaluate(&format!("{TEXTS}.filter((text) => {pattern}.test(text))")).await
}

/// Nothing of the other language is left on any page, also in its questions and hints.
#[tokio::test(flavor = "multi_thread")]
async fn every_page_is_in_one_language() {
    let day = Day::begin().await;
    let page = Page::open().await;
    page.sign_in_at(&day.shop, "root", "/admin").await;
    let mut wrong = Vec::new();
    for (language, of_the_other) in [("zh", ENGLISH_WORDS), ("en", CHINESE_LETTERS)] {
        page.open_console(&day.shop, "/admin").await;
        page.wait(READY).await;
        page.note_document().await;
        page.speak(language).await;
        page.next_document().await;
        for place in places(&day) {
            visit(&page, &day, &place.path).await;
            page.wait(READY).await;
            assert!(page.is_true(&format!("document.documentElement.lang.startsWith({language:?})")).await);
            let found = texts_with(&page, of_the_other).await;
            if found != json!([]) {
                wrong.push(format!("{}, {language}: {found}", place.name));
            }
            if language == "zh" {
                page.screenshot(&format!("console-zh-{}", place.name)).await;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    day.shop.close(page).await;
}

/// The choice outlives signing out. Errors, the preview, and problems of the API follow it.
#[tokio::test(flavor = "multi_thread")]
async fn forms_and_problems_follow_the_language() {
    let (shop, page) = console(&[]).await;
    page.open_console(&shop, "/admin/sign-in").await;
    page.wait(READY).await;
    page.note_document().await;
    page.click("#language").await;
    page.next_document().await;
    assert_eq!(texts_with(&page, ENGLISH_WORDS).await, json!([]));
    page.type_over("main [name=name]", "max").await;
    page.type_over("main [name=password]", "a wrong password").await;
    page.click("main form button").await;
    page.wait("document.querySelector('main output').innerText.includes('名称或密码错误')").await;
    page.enter("max", crate::console::PASSWORD).await;
    page.open_console(&shop, "/admin/sales/new").await;
    page.wait(READY).await;
    let publish = format!("{} .button", form("sales"));
    page.click(&publish).await;
    page.wait("document.querySelector('main .error')?.textContent === '商品：此项必填'").await;
    for (field, text) in [("product", "台灯"), ("price_cents", "0"), ("stock", "5")] {
        page.type_over(&format!("main [name={field}]"), text).await;
    }
    page.press_and_look(&publish).await;
    page.wait("document.querySelector('dialog').innerText.includes('价格为 0')").await;
    assert_eq!(texts_with(&page, ENGLISH_WORDS).await, json!([]));
    page.screenshot("console-zh-preview").await;
    page.click("dialog button[value=no]").await;
    page.open_console(&shop, "/admin/accounts").await;
    page.wait(&shown("main h1")).await;
    assert_eq!(page.evaluate("document.querySelector('h1').textContent").await, "您无权执行此操作");
    shop.close(page).await;
}
