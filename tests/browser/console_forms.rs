//! The console's forms: money as people type it, the preview before a sale is published, drafts, copies, and errors at their fields.

use serde_json::{Value, json};

use crate::chromium::Page;
use crate::console::{console, form, phase, shows};
use crate::page::{READY, shown, text};

/// What a person types, its currency, and the amount in minor units, or a part of the error.
const AMOUNTS: &str = "[
    ['129', 'CNY', 12900], ['129.00', 'CNY', 12900], ['129,5', 'CNY', 12950], [' 0.05 ', 'EUR', 5], ['0', 'USD', 0],
    ['129', 'JPY', 129], ['129.000', 'KWD', 129000], ['1.2345', 'CLF', 12345], ['１２９．００', 'CNY', 12900],
    ['1,299', 'CNY', '1299.00'], ['1.299', 'EUR', '1299.00'], ['1 299,00', 'EUR', '1299.00'], ['1,299.5', 'USD', '1299.50'],
    ['1.299,50', 'EUR', '1299.50'], ['1,299', 'JPY', '1299'], ['1,234,567', 'KWD', '1234567.000'], ['1’299.00', 'CHF', '1299.00'],
    ['129.005', 'CNY', 'at most 2 decimals'], ['1290.055', 'CNY', 'has 2 decimals'], ['129.5', 'JPY', 'has no decimals'],
    ['-1', 'CNY', 'an amount such as 129.00'], ['', 'CNY', 'an amount'], ['¥129', 'CNY', 'an amount'], ['1e3', 'CNY', 'an amount'],
    ['129.', 'CNY', 'an amount'], ['.5', 'CNY', 'an amount'], ['99999999999999999999', 'CNY', 'too much'],
]";

/// The console's own functions, found among the scripts that the page has loaded.
const READ_ALL: &str = "(async (amounts) => {
    const file = performance.getEntriesByType('resource').find(({ name }) => name.includes('/money.')).name;
    const { money, parseMoney } = await import(file);
    const digits = (code) => Number(document.querySelector(`option[value=${code}]`).dataset.digits);
    return amounts.filter(([typed, code, wanted]) => {
        const currency = { code, digits: digits(code) };
        const { cents, error } = parseMoney(typed, currency);
        // What is shown is read as the same amount, without the signs between groups.
        const again = () => parseMoney(money(cents, currency).slice(4).replaceAll('\\u202f', ''), currency).cents;
        return error === undefined ? cents !== wanted || again() !== cents : !error.includes(wanted);
    });
})";

/// Amounts as the console's scripts show them; `show::money` has the same table.
const SHOWN: &str = "(async (amounts) => {
    const file = performance.getEntriesByType('resource').find(({ name }) => name.includes('/money.')).name;
    const { money } = await import(file);
    return amounts.map(([cents, code, digits]) => money(cents, { code, digits }).replaceAll('\\u202f', ' '));
})([[123456, 'CNY', 2], [5, 'HUF', 2], [123456, 'JPY', 0], [12345, 'IQD', 3], [100000000000, 'CNY', 2], [0, 'JPY', 0]])";

async fn plan(page: &Page, terms: &[(&str, &str)]) {
    for (field, text) in terms {
        page.type_over(&format!("{} [name={field}]", form("sales")), text).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn money_is_read_as_people_type_it() {
    let (shop, page) = console(&[]).await;
    page.sign_in_at(&shop, "max", "/admin/sales/new").await;
    assert_eq!(page.evaluate(&format!("{READ_ALL}({AMOUNTS})")).await, json!([]));
    let shown = json!(["CNY 1 234.56", "HUF 0.05", "JPY 123 456", "IQD 12.345", "CNY 1 000 000 000.00", "JPY 0"]);
    assert_eq!(page.evaluate(SHOWN).await, shown);
    shop.close(page).await;
}

/// A preview shows the price, the times in both zones and what is probably wrong. "No" sends nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_is_previewed_before_it_is_published() {
    let (shop, page) = console(&[]).await;
    let before = shop.sale_of("Lamp", "12900", &["--stock", "5"]).await;
    page.sign_in_at(&shop, "max", "/admin/sales/new").await;
    page.devtools("Emulation.setTimezoneOverride", json!({ "timezoneId": "Asia/Shanghai" })).await;
    page.open_console(&shop, "/admin/sales/new").await;
    plan(&page, &[("product", "Lamp"), ("price_cents", "1.29"), ("stock", "500"), ("pay_within_s", "90")]).await;
    let end = "(() => { const field = document.querySelector('[name=ends_at_ms]');
        field.value = '2031-01-02T03:04:05'; field.dispatchEvent(new Event('input', { bubbles: true })); })()";
    page.evaluate(end).await;
    let publish = format!("{} .button", form("sales"));
    page.press_and_look(&publish).await;
    let dialog = page.evaluate(&text("dialog")).await;
    let dialog = dialog.as_str().unwrap().to_owned();
    for said in [
        "Publish this sale?",
        "CNY 1.29, 500 units, at most 1 a buyer",
        "3:04:05",
        "Jan 1, 2031, 7:04:05",
        "UTC",
        "1 h 30 min",
        "more than 30 days",
        "last sale was CNY 129.00",
    ] {
        assert!(dialog.contains(said), "{said}: {dialog}");
    }
    page.screenshot("console-sale-preview").await;
    page.click("dialog button[value=no]").await;
    let sales = async || shop.system.number("SELECT count(*) FROM sales").await;
    assert_eq!(sales().await, 1, "only {}", before.id);
    page.leave_after_question(&publish).await;
    page.wait(&phase("open")).await;
    assert_eq!(shop.system.number("SELECT price_cents FROM sales ORDER BY id DESC LIMIT 1").await, 129);
    assert_eq!(shop.system.number("SELECT pay_within_ms FROM sales ORDER BY id DESC LIMIT 1").await, 5_400_000);
    shop.close(page).await;
}

/// A draft is no sale. Another person opens it and publishes it, which removes it in the same step. A copy has all but the times.
#[tokio::test(flavor = "multi_thread")]
async fn a_draft_is_kept_and_published_and_a_sale_is_copied() {
    let (shop, page) = console(&[]).await;
    page.sign_in_at(&shop, "max", "/admin/sales/new").await;
    plan(&page, &[("product", "Teapot"), ("price_cents", "19,9")]).await;
    page.click("[name=unlimited]").await;
    page.click("#add-wave").await;
    page.type_over("#waves .after", "5").await;
    page.type_over("#waves .units", "10").await;
    page.leave("#save-draft").await;
    page.wait("location.search.startsWith('?draft=')").await;
    let value = |name: &str| format!("document.querySelector('form [name={name}]').value");
    page.wait(&format!("{} === '19,9'", value("price_cents"))).await;
    assert!(page.is_true("document.querySelector('[name=stock]').disabled").await);
    assert_eq!(page.evaluate("document.querySelector('#waves .units').value").await, "10");
    // Saved again with a number of units.
    page.click("[name=unlimited]").await;
    plan(&page, &[("stock", "30"), ("pay_within_s", "2.5")]).await;
    page.click("#save-draft").await;
    page.wait(&shows("The draft is saved")).await;
    let drafts = async || shop.system.number("SELECT count(*) FROM sale_drafts").await;
    assert_eq!((drafts().await, shop.system.number("SELECT count(*) FROM sales").await), (1, 0));

    page.open_console(&shop, "/admin/sales").await;
    page.leave("main a[href^='/admin/sales/new?draft=']").await;
    page.leave_after_question(&format!("{} .button", form("sales"))).await;
    page.wait(&phase("open")).await;
    assert_eq!(drafts().await, 0);
    let lines = "SELECT array_agg(action ORDER BY id) FROM audit_log WHERE actor = 'max' AND action NOT LIKE 'sign%'";
    assert_eq!(shop.system.value::<Vec<String>>(lines).await, ["draft saved", "draft saved", "sale planned"]);

    page.leave("main a[href^='/admin/sales/new?like=']").await;
    let terms = ["product", "price_cents", "stock", "pay_within_s", "starts_at_ms", "ends_at_ms"];
    let copied = json!(["Teapot", "19.90", "30", "2.5", "", ""]);
    let copied_now = format!("[{}]", terms.map(value).join(", "));
    assert_eq!(page.evaluate(&copied_now).await, copied);
    shop.close(page).await;
}

/// The fields that have an error, with the error, in order; the first one has the focus.
const ERRORS: &str = "[...document.querySelectorAll('main [aria-invalid=true]')].map((field) => [field.name,
    document.getElementById(field.getAttribute('aria-describedby').split(' ').at(-1)).textContent])";

/// Errors found in the page and errors found by the API stand at their fields, under the names that people see.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_stands_at_its_field() {
    let (shop, page) = console(&[]).await;
    page.sign_in_at(&shop, "max", "/admin/sales/new").await;
    plan(&page, &[("product", "Lamp"), ("price_cents", "1,299"), ("per_user", "0")]).await;
    let publish = format!("{} .button", form("sales"));
    page.click(&publish).await;
    page.wait(&format!("{ERRORS}.length === 3")).await;
    let expected = json!([
        [
            "price_cents",
            "Price of one unit: write it without a separator of thousands, such as 1299.00, and with at most 2 decimals"
        ],
        ["stock", "Units for sale, with those of waves: this is missing"],
        ["per_user", "Units that one buyer may have: at least 1"],
    ]);
    assert_eq!(page.evaluate(ERRORS).await, expected);
    assert_eq!(page.evaluate("document.activeElement.name").await, "price_cents");
    page.screenshot("console-form-errors").await;
    // An error goes when its field changes.
    plan(&page, &[("price_cents", "1299"), ("stock", "5"), ("per_user", "1")]).await;
    assert_eq!(page.evaluate(ERRORS).await, json!([]));

    // What only the API knows: the name has a character that nobody sees.
    let hidden = "document.querySelector('[name=product]').value = 'La\u{202e}mp'";
    page.evaluate(hidden).await;
    page.press_and_answer(&publish, "yes").await;
    page.wait(&format!("{ERRORS}.length === 1")).await;
    let error: Value = page.evaluate(ERRORS).await;
    assert_eq!(error[0][0], "product");
    assert!(error[0][1].as_str().unwrap().starts_with("Product: "), "{error}");
    assert_eq!(page.evaluate("document.activeElement.name").await, "product");
    assert!(!page.is_true(&shown("main output")).await, "it is said once");
    shop.close(page).await;
}

/// Keeps what the page sends to change a sale, and answers in the place of the service.
const CATCH: &str = "(() => {
    const ask = window.fetch;
    const answer = { code: 'unworkable-terms', title: '', detail: 'stock must be at least 3', field: 'stock' };
    window.fetch = (address, options) => {
        if (options?.method !== 'PATCH') return ask(address, options);
        window.sent = [address, JSON.parse(options.body)];
        return Promise.resolve(new Response(JSON.stringify(answer), { status: 409 }));
    };
})()";

/// The form of a change begins with the sale's terms and sends only what differs. What buyers have agreed to cannot be changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_sends_what_differs() {
    let (shop, page) = console(&[]).await;
    let terms = ["--stock", "20", "--starts-in", "3600", "--ends-in", "7200", "--wave", "60:5"];
    let planned = shop.sale_of("Lamp", "2500", &terms).await;
    let sold = shop.sale(&["--stock", "5"]).await;
    shop.order_of(&sold, "ann").await;
    page.sign_in_at(&shop, "max", &format!("/admin/sales/{}", planned.id)).await;
    page.leave("main a[href$='/edit']").await;
    page.evaluate(CATCH).await;
    let change = form(&format!("sales/{}", planned.id));
    let button = format!("{change} .actions > .button");
    page.click(&button).await;
    page.wait(&format!("{ERRORS}.length === 1 && {ERRORS}[0][1].includes('nothing has been changed')")).await;
    for (field, text) in [("price_cents", "26,5"), ("stock", "2"), ("pay_within_s", "20")] {
        page.type_over(&format!("{change} [name={field}]"), text).await;
    }
    page.press_and_look(&button).await;
    let asked = page.evaluate(&text("dialog")).await;
    for said in ["Change the sale?", "CNY 26.50, 2 units", "5 units 1 min after the start"] {
        assert!(asked.as_str().unwrap().contains(said), "{said}: {asked}");
    }
    page.click("dialog button[value=yes]").await;
    page.wait(&format!("{ERRORS}.length === 1")).await;
    let differs = json!({ "price_cents": 2650, "stock": 2, "pay_within_s": 1200 });
    assert_eq!(page.evaluate("window.sent").await, json!([format!("/api/v1/admin/sales/{}", planned.id), differs]));
    let at_its_field = json!([["stock", "Units for sale, with those of waves: must be at least 3"]]);
    assert_eq!(page.evaluate(ERRORS).await, at_its_field);

    page.open_console(&shop, &format!("/admin/sales/{}/edit", sold.id)).await;
    page.wait(READY).await;
    page.evaluate(CATCH).await;
    let open = "[...document.querySelectorAll('#sale-form [name]:enabled')].map((field) => field.name)";
    assert_eq!(page.evaluate(open).await, json!(["stock", "ends_at_ms", "keep_refunded", "show_stock", "waves"]));
    page.type_over("#sale-form [name=stock]", "7").await;
    page.press_and_answer("#sale-form .actions > .button", "yes").await;
    page.wait("window.sent").await;
    assert_eq!(page.evaluate("window.sent[1]").await, json!({ "stock": 7 }));
    shop.close(page).await;
}
